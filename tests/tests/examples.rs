//! The examples of hosts, compiled unchanged and run: each returns 0 if its results are right.

use std::ffi::{CString, c_char, c_int};

unsafe extern "C" {
    fn outrigger_graph_example_c(argc: c_int, argv: *const *mut c_char) -> c_int;
    fn outrigger_graph_example_cpp() -> c_int;
}

// The examples, and the exports that they call, are linked through these.
use outrigger as _;
use outrigger_tests as _;

#[test]
fn the_graph_in_c_runs_and_draws_itself() {
    let folder = std::env::temp_dir().join(format!("outrigger-examples-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the picture");
    let picture = folder.join("graph.svg");
    let arguments = [
        c"graph".to_owned(),
        CString::new(picture.to_str().expect("UTF-8")).expect("no NUL"),
    ];
    let pointers = arguments.each_ref().map(|one| one.as_ptr().cast_mut());
    // SAFETY: as the start of a C program: two arguments that live through the call.
    let code = unsafe { outrigger_graph_example_c(2, pointers.as_ptr()) };
    assert_eq!(code, 0);
    let svg = std::fs::read_to_string(&picture).expect("the picture was written");
    assert!(
        svg.starts_with("<svg") && svg.matches("<rect").count() == 3,
        "{svg}"
    );
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

#[test]
fn the_graph_in_cpp_runs() {
    // SAFETY: takes nothing, and lets no exception out.
    assert_eq!(unsafe { outrigger_graph_example_cpp() }, 0);
}
