//! The operators that are made from kernels, by name. Each file has those that share a text.

mod attention;
mod bag;
mod batch_norm;
mod cat;
mod cell;
pub(crate) mod convolution;
mod element_loss;
mod elementwise;
mod generate;
mod group_norm;
mod index;
mod loss;
mod matmul;
mod norm;
mod optimizer;
mod picked;
mod pool;
pub(crate) mod product;
mod quantized;
mod reduce;
mod resample;
mod rows;
mod scan;
mod scatter_reduce;
mod sort;
mod sums;

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::LazyLock;

use outrigger_ops::Call;

use crate::call::Result;
use crate::device::Device;
use crate::work::Prepared;

/// Makes an operator for a call, or says why there is none.
pub(crate) type Maker = fn(&Device, &CStr, &Call<'_>) -> Result<Prepared>;

/// All operators, in the order in which they are listed.
fn all() -> Vec<(&'static CStr, Maker)> {
    let mut all: Vec<(&'static CStr, Maker)> = Vec::new();
    for name in elementwise::names() {
        let maker: Maker = match name.to_bytes() {
            b"copy" => elementwise::make_copy,
            b"fill" => elementwise::make_fill,
            _ => elementwise::make,
        };
        all.push((name, maker));
    }
    let mut add = |names: &mut dyn Iterator<Item = &'static CStr>, maker: Maker| {
        all.extend(names.map(|name| (name, maker)));
    };
    add(&mut reduce::names(), reduce::make);
    add(&mut matmul::names(), matmul::make);
    add(&mut convolution::names(), convolution::make);
    add(&mut rows::names(), rows::make);
    add(&mut norm::names(), norm::make);
    add(&mut batch_norm::names(), batch_norm::make);
    add(&mut optimizer::names(), optimizer::make);
    add(&mut loss::names(), loss::make);
    add(&mut index::names(), index::make);
    add(&mut cat::names(), cat::make);
    add(&mut picked::names(), picked::make);
    add(&mut sort::names(), sort::make);
    add(&mut scan::names(), scan::make);
    add(&mut group_norm::names(), group_norm::make);
    add(&mut resample::names(), resample::make);
    add(&mut element_loss::names(), element_loss::make);
    add(&mut cell::names(), cell::make);
    add(&mut scatter_reduce::names(), scatter_reduce::make);
    add(&mut bag::names(), bag::make);
    add(&mut quantized::names(), quantized::make);
    add(&mut attention::names(), attention::make);
    add(&mut pool::names(), pool::make);
    add(&mut generate::names(), generate::make);
    all
}

static MAKERS: LazyLock<HashMap<&'static CStr, Maker>> =
    LazyLock::new(|| all().into_iter().collect());

/// The operators of a device.
pub(crate) fn names(_: &Device) -> impl Iterator<Item = &'static CStr> {
    all().into_iter().map(|(name, _)| name)
}

/// The maker of an operator; `None` for a name that is not listed.
pub(crate) fn find(name: &CStr) -> Option<Maker> {
    MAKERS.get(name).copied()
}
