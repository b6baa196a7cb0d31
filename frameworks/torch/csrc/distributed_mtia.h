//! Collectives of torch.distributed for tensors of MTIA, for which torch has none.
#pragma once

namespace outrigger {

/// Registers every operator of torch.distributed for MTIA that torch has for PrivateUse1. Once.
void register_mtia_collectives();

}  // namespace outrigger
