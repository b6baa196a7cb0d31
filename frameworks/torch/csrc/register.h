//! The registration functions of all operator files. The same functions serve both dispatch keys: a
//! kernel finds its device by its arguments.
#pragma once

#include <torch/library.h>

namespace outrigger {

/// Operators that torch itself would serve wrongly, and that the CPU serves.
void register_host_composites(torch::Library& library);
/// Copies and reads by the host.
void register_copies(torch::Library& library);
/// empty, resize_, set_ and their like.
void register_factories(torch::Library& library);
/// Operators that only make another tensor over the same storage.
void register_views(torch::Library& library);
/// Whether a tensor can take another one's place, as `.data = ` and `Module.to` do.
void register_shallow_copies(torch::Library& library);
/// Elementwise operators of one operand.
void register_unary(torch::Library& library);
/// Elementwise operators of two and three operands.
void register_binary(torch::Library& library);
/// Comparisons, logic and selection.
void register_logic(torch::Library& library);
/// Sums, means, extremes.
void register_reductions(torch::Library& library);
/// Matrix products.
void register_matmul(torch::Library& library);
/// Operators of neural networks.
void register_nn(torch::Library& library);
/// Batch norm over the batches of several processes.
void register_batch_norm(torch::Library& library);
/// Cells of recurrent networks.
void register_recurrent(torch::Library& library);
/// Losses.
void register_losses(torch::Library& library);
/// Convolution.
void register_convolution(torch::Library& library);
/// Attention.
void register_attention(torch::Library& library);
/// Embedding, index_select, cat.
void register_indexing(torch::Library& library);
/// Views and copies of quantized tensors.
void register_quantized(torch::Library& library);
/// Random numbers.
void register_random(torch::Library& library);
/// Random numbers of distributions that are made of others.
void register_sampling(torch::Library& library);
/// Fused steps of optimizers.
void register_optimizers(torch::Library& library);

}  // namespace outrigger
