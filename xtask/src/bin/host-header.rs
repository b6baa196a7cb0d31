//! Prints a header of the host contract, made from ffi/ as its `cbindgen-NAME.toml` says: `outrigger` of what lies in
//! `ffi/src`, `framework` of what lies in `ffi/src/framework`, `table` of the table of all functions. With `table.rs` it
//! prints `ffi/src/table.rs`, this table. It is a separate program behind the feature `gen`, so that only those who
//! regenerate build cbindgen. `cargo xtask gen` starts it, never a person. It must never change the order of the
//! table's entries: new entries go to its end.
//!
//! The macro `api!` declares the exports. To expand it, cbindgen would need an unstable compiler and
//! would build all dependencies again. Instead, this program writes the signatures that the macro makes
//! into copies of the sources. tests/ compares the header with the exports of the real library.

// Standard output is this program's result, read by the process that started it.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use quote::format_ident;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Expr, Field, FieldValue, Item, ItemFn, Lit, Meta, Visibility, parse_quote};

/// The module with the table of all functions.
const TABLE: &str = "table.rs";

/// The folder with the exports of `framework.h`.
const FRAMEWORK: &str = "framework";

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(scratch), Some(what)) = (arguments.next(), arguments.next()) else {
        bail!("usage: host-header SCRATCH-FOLDER outrigger|framework|table|table.rs");
    };
    let scratch = Path::new(&scratch).join(&what);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let ffi = root.join("ffi");
    let source = ffi.join("src");
    if what == TABLE {
        print!("{}", table(&source)?);
        return Ok(());
    }
    let config = ffi.join(format!("cbindgen-{what}.toml"));
    let config = cbindgen::Config::from_file(&config)
        .map_err(anyhow::Error::msg)
        .with_context(|| config.display().to_string())?;
    fs::create_dir_all(&scratch)
        .with_context(|| format!("{} cannot be made", scratch.display()))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    let sources = match what.as_str() {
        "outrigger" => modules(&source, "lib.rs")?,
        FRAMEWORK => modules(&source.join(FRAMEWORK), "mod.rs")?,
        // As the committed one, which was generated just before.
        "table" => vec![source.join(TABLE)],
        _ => bail!("there is no header {what}"),
    };
    for source in sources {
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

/// The modules of a folder but the table, in the order of their declaration, which is the order of the header.
fn modules(folder: &Path, root: &str) -> anyhow::Result<Vec<PathBuf>> {
    let root = folder.join(root);
    let modules = parse(&root)?
        .items
        .into_iter()
        .filter_map(|item| match item {
            Item::Mod(module) if module.ident != FRAMEWORK => {
                Some(folder.join(format!("{}.rs", module.ident)))
            }
            _ => None,
        })
        .filter(|path| !path.ends_with(TABLE));
    Ok(std::iter::once(root.clone()).chain(modules).collect())
}

fn parse(path: &Path) -> anyhow::Result<syn::File> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    syn::parse_file(&text).with_context(|| format!("{} cannot be parsed", path.display()))
}

/// The text of the table: all exports, those that it has already first, in their order.
fn table(folder: &Path) -> anyhow::Result<String> {
    let mut exports = BTreeMap::new();
    let mut order = table_order(&folder.join(TABLE))?;
    let mut sources = modules(folder, "lib.rs")?;
    sources.extend(modules(&folder.join(FRAMEWORK), "mod.rs")?);
    for source in sources {
        for item in parse(&source)?.items {
            let functions = match item {
                Item::Macro(call) if call.mac.path.is_ident("api") => {
                    call.mac.parse_body::<Exports>()?.0
                }
                Item::Fn(function) if is_export(&function) => vec![function],
                _ => continue,
            };
            for function in functions {
                let name = function.sig.ident.to_string();
                if !order.contains(&name) {
                    order.push(name.clone());
                }
                exports.insert(name, function.sig);
            }
        }
    }
    let mut entries: Vec<Field> = Vec::new();
    let mut values: Vec<FieldValue> = Vec::new();
    for name in order {
        let signature = exports.get(&name).with_context(|| {
            format!("{name} is gone, but entries of the table are never removed (rule H30)")
        })?;
        let entry = format_ident!("{}", name.trim_start_matches("otr_"));
        let (function, unsafety) = (&signature.ident, &signature.unsafety);
        let (inputs, output) = (&signature.inputs, &signature.output);
        entries.push(parse_quote!(pub #entry: #unsafety extern "C" fn(#inputs) #output));
        values.push(parse_quote!(#entry: crate::#function));
    }
    let file: syn::File = parse_quote! {
        //! The table of all functions, for hosts that load the library at run time. Generated from the
        //! other modules by `cargo xtask gen`; do not edit. Entries are added at the end only.
        #![expect(missing_docs, reason = "an entry is the function of its name with otr_ before it")]

        use std::ffi::{c_char, c_void};

        use outrigger_device::sys::{otr_host_fn, otr_launch_t, otr_operator_call_t, otr_scalar_t, otr_transfer_t};

        use crate::*;

        /// The major number of the host contract.
        pub const OTR_HOST_API_MAJOR: u32 = 1;
        /// The minor number of the host contract, which counts additions.
        pub const OTR_HOST_API_MINOR: u32 = 0;

        /// All functions but otr_host_api, each under its name without `otr_`. Up to `api_minor` it is
        /// the same in all major versions; of the rest, what lies within `struct_size` is there.
        #[repr(C)]
        #[derive(Debug)]
        pub struct otr_host_api_t {
            /// sizeof(otr_host_api_t), of the library
            pub struct_size: usize,
            /// OTR_HOST_API_MAJOR of the library
            pub api_major: u32,
            /// OTR_HOST_API_MINOR of the library
            pub api_minor: u32,
            #(#entries,)*
        }

        pub(crate) static HOST_API: otr_host_api_t = otr_host_api_t {
            struct_size: size_of::<otr_host_api_t>(),
            api_major: OTR_HOST_API_MAJOR,
            api_minor: OTR_HOST_API_MINOR,
            #(#values,)*
        };

        /// All functions as a table, for hosts that load the library at run time: they look up only this
        /// symbol. The table lives as long as the process. A host continues only if `api_major` is its own
        /// OTR_HOST_API_MAJOR. The table has an entry if the entry lies within `struct_size`
        /// (OTR_HOST_API_HAS).
        #[unsafe(no_mangle)]
        pub extern "C" fn otr_host_api() -> *const otr_host_api_t {
            &raw const HOST_API
        }
    };
    Ok(prettyplease::unparse(&file))
}

/// True for a function that C sees, declared without `api!`.
fn is_export(function: &ItemFn) -> bool {
    function.sig.abi.is_some() && matches!(function.vis, Visibility::Public(_))
}

/// The entries of the table as it is, by the names of their functions.
fn table_order(path: &Path) -> anyhow::Result<Vec<String>> {
    let table = parse_if_there(path)?
        .items
        .into_iter()
        .find_map(|item| match item {
            Item::Struct(table) => Some(table),
            _ => None,
        });
    Ok(table.map_or_else(Vec::new, |table| {
        let entries = table.fields.into_iter().filter_map(|field| field.ident);
        let head = ["struct_size", "api_major", "api_minor"];
        let names = entries.map(|entry| entry.to_string());
        names
            .filter(|name| !head.contains(&name.as_str()))
            .map(|name| format!("otr_{name}"))
            .collect()
    }))
}

/// The table is not there before it is made for the first time.
fn parse_if_there(path: &Path) -> anyhow::Result<syn::File> {
    if path.exists() {
        parse(path)
    } else {
        Ok(parse_quote!())
    }
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
