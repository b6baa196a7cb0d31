//! Prints `outrigger.h`, made from ffi/ as ffi/cbindgen.toml says. A program of its own, behind the
//! feature `gen`, so that only those who regenerate build cbindgen. Started by `cargo xtask gen`; never
//! by a person.
//!
//! The exports are declared by the macro `api!`, which cbindgen would have to ask an unstable compiler
//! to expand, with all dependencies built again. This program writes the signatures that the macro makes
//! into copies of the sources instead; tests/ compares the header with the exports of the real library.

// Standard output is this program's result, read by the process that started it.
#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Expr, Item, ItemFn, Lit, Meta, parse_quote};

fn main() -> anyhow::Result<()> {
    let scratch: PathBuf = std::env::args_os()
        .nth(1)
        .context("usage: host-header SCRATCH-FOLDER")?
        .into();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let ffi = root.join("ffi");
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml"))
        .map_err(anyhow::Error::msg)
        .context("ffi/cbindgen.toml")?;
    fs::create_dir_all(&scratch)
        .with_context(|| format!("{} cannot be made", scratch.display()))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources(&ffi.join("src"))? {
        builder = builder.with_src(expanded(&source, &scratch)?);
    }
    let mut header = Vec::new();
    builder.generate()?.write(&mut header);
    print!("{}", tidied(std::str::from_utf8(&header)?));
    Ok(())
}

/// The header without the runs of empty lines that cbindgen leaves where it skips a private constant.
fn tidied(header: &str) -> String {
    let mut tidied = String::with_capacity(header.len());
    let mut after_empty = false;
    for line in header.lines() {
        if !(line.is_empty() && after_empty) {
            tidied.push_str(line);
            tidied.push('\n');
        }
        after_empty = line.is_empty();
    }
    tidied
}

/// The crate's modules in the order of their declaration, which is the order of the header.
fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let root = folder.join("lib.rs");
    let modules = parse(&root)?
        .items
        .into_iter()
        .filter_map(|item| match item {
            Item::Mod(module) => Some(folder.join(format!("{}.rs", module.ident))),
            _ => None,
        });
    Ok(std::iter::once(root.clone()).chain(modules).collect())
}

fn parse(path: &Path) -> anyhow::Result<syn::File> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    syn::parse_file(&text).with_context(|| format!("{} cannot be parsed", path.display()))
}

/// A copy of `source` in `scratch` with the uses of `api!` replaced by the functions that they declare.
fn expanded(source: &Path, scratch: &Path) -> anyhow::Result<PathBuf> {
    let mut file = parse(source)?;
    let mut items = Vec::new();
    for item in file.items {
        match item {
            Item::Macro(call) if call.mac.path.is_ident("api") => {
                let Exports(functions) = call
                    .mac
                    .parse_body()
                    .with_context(|| format!("api! in {}", source.display()))?;
                items.extend(functions.into_iter().map(Item::Fn));
            }
            Item::Fn(mut function) => {
                without_rust_heading(&mut function.attrs);
                items.push(Item::Fn(function));
            }
            Item::Mod(_) => {} // each module is given to cbindgen as a file
            other => items.push(other),
        }
    }
    file.items = items;
    let copy = scratch.join(source.file_name().context("a source has a name")?);
    fs::write(&copy, prettyplease::unparse(&file))
        .with_context(|| format!("{} cannot be written", copy.display()))?;
    Ok(copy)
}

/// The functions that one `api!` declares, with the signatures that the macro gives them.
struct Exports(Vec<ItemFn>);

impl Parse for Exports {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut functions = Vec::new();
        while !input.is_empty() {
            let mut function: ItemFn = input.parse()?;
            function.attrs.push(parse_quote!(#[unsafe(no_mangle)]));
            function.vis = parse_quote!(pub);
            function.sig.unsafety = parse_quote!(unsafe);
            function.sig.abi = parse_quote!(extern "C");
            function.sig.output = parse_quote!(-> *mut otr_status_t);
            function.block = parse_quote!({});
            functions.push(function);
        }
        Ok(Self(functions))
    }
}

/// Takes the heading `# Safety` out of a comment: what stands under it is for C readers too.
fn without_rust_heading(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| {
        let is_heading = |value: &Expr| {
            matches!(value, Expr::Lit(literal) if matches!(&literal.lit, Lit::Str(text) if text.value() == " # Safety"))
        };
        !matches!(&attribute.meta, Meta::NameValue(doc) if is_heading(&doc.value))
    });
}
