//! The real compiler, which needs no device: kernels for three generations of devices. `OUTRIGGER_TEST_NVRTC` names it.

use crate::bench::Bench;
use outrigger_device::{Code, sys};
use serial_test::serial;

const TEXT: &str = "
extern \"C\" __global__ void scale(float* x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
";

#[test]
#[serial]
fn cuda_c_becomes_code_for_each_device() {
    let Ok(path) = std::env::var("OUTRIGGER_TEST_NVRTC") else {
        return;
    };
    for capability in [80, 90, 100] {
        let bench = Bench::new();
        bench.capability(capability);
        let driver = bench.try_open(Some(&path)).unwrap();
        bench.calls();
        let load = |text: &str, options| {
            driver.module_load(0, sys::OTR_CODE_CUDA_C, text.as_bytes(), options)
        };
        let module = load(TEXT, Some(c"--use_fast_math -DX=1")).unwrap();
        assert!(
            !bench.calls().contains(&"cuLinkCreate_v2".to_owned()),
            "it is code for the device"
        );
        let binary = module.binary().unwrap();
        assert!(binary.starts_with(b"\x7fELF"));
        let name = b".text.scale\0";
        assert!(binary.windows(name.len()).any(|part| part == name));
        let error = load("__global__ void f() {\n  int x = y;\n}\n", None).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT);
        assert!(error.message().contains("kernel.cu(2): error"), "{error}");
        drop(module);
        bench.finish(driver);
    }
}
