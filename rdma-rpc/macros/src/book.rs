//! Test that the code that the book shows equals the code that the attribute generates. The book
//! shortens paths and omits some function bodies.

use std::path::Path;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::visit_mut::VisitMut;
use syn::{Block, File, ImplItem, Item, ItemTrait, LitInt, PathSegment, parse_quote};

use crate::model::Service;
use crate::options::ServiceOptions;

/// Returns the text of the code block that begins with `first`. Reads the block from the page about
/// rdma-rpc of the book, the documentation in `docs/src`.
fn block(first: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/rpc.md");
    let page = std::fs::read_to_string(page).expect("the book is in the repository");
    let mut blocks = page.split("```rust,ignore\n").skip(1);
    let found = blocks.find(|block| block.starts_with(first));
    let block = found.expect("the page has the block");
    block.split("```").next().unwrap_or_default().to_owned()
}

/// Syntax-tree visitor that shortens generated code to the form that the book shows: without module
/// paths, documentation and type checks.
struct PathShortener;

impl VisitMut for PathShortener {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        if path.leading_colon.take().is_some() {
            let is_module = |segment: &PathSegment| {
                let name = segment.ident.to_string();
                name.starts_with(|first: char| first.is_lowercase())
            };
            let segments = path
                .segments
                .iter()
                .skip_while(|segment| is_module(segment));
            path.segments = segments.cloned().collect();
        }
        syn::visit_mut::visit_path_mut(self, path);
    }

    fn visit_attributes_mut(&mut self, attributes: &mut Vec<syn::Attribute>) {
        attributes.retain(|attribute| attribute.path().is_ident("derive"));
    }

    fn visit_lit_int_mut(&mut self, number: &mut LitInt) {
        *number = LitInt::new(number.base10_digits(), number.span());
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        // The book omits the checks of the types.
        block.stmts.retain(|statement| {
            let text = statement.to_token_stream().to_string();
            !text.starts_with(":: rdma_rpc :: generated :: check")
        });
        syn::visit_mut::visit_block_mut(self, block);
    }
}

/// Splits `file` into its items, so that a test can compare them. Returns two texts for each item:
/// the head of the `impl` block that contains the item (empty outside of such a block), and the
/// item itself. Removes the bodies of the functions in `omitted`, because the book shows these
/// bodies as `{ .. }`.
fn parts(mut file: File, omitted: &[String]) -> Vec<(String, String)> {
    PathShortener.visit_file_mut(&mut file);
    let mut parts = Vec::new();
    let mut add = |head: &TokenStream, item: &dyn ToTokens| {
        // Spaces and trailing commas are ignored.
        let text = |tokens: String| {
            let ends = [(" ", ""), (",)", ")"), (",}", "}")];
            ends.iter()
                .fold(tokens, |text, (end, short)| text.replace(end, short))
        };
        parts.push((
            text(head.to_string()),
            text(item.to_token_stream().to_string()),
        ));
    };
    for item in file.items {
        match item {
            Item::Impl(block) => {
                let generics = &block.generics;
                let of = block.trait_.as_ref().map(|(path, _)| quote!(#path for));
                let ty = &block.self_ty;
                let head = quote!(impl #generics #of #ty);
                for mut item in block.items {
                    if let ImplItem::Fn(function) = &mut item
                        && omitted.contains(&function.sig.ident.to_string())
                    {
                        function.block = parse_quote!({});
                    }
                    add(&head, &item);
                }
            }
            item => add(&quote!(), &item),
        }
    }
    parts
}

#[test]
fn the_code_in_the_book_equals_the_generated_code() {
    let service = block("#[rdma_rpc::service]\ntrait Store {");
    let mut service: ItemTrait = syn::parse_str(&service).expect("the service is a trait");
    service.attrs.clear();
    service.items.truncate(1);
    let options: ServiceOptions = syn::parse_str("").expect("no option is needed");
    let service = Service::new(options, service).unwrap_or_else(|error| panic!("{error}"));
    let generated: File = syn::parse2(crate::expand::service(&service)).expect("it is valid code");

    let shown = block("trait Store: Send");
    let omitted: Vec<String> = shown
        .lines()
        .filter(|line| line.contains("{ .. }"))
        .map(|line| {
            let name = line.split("fn ").nth(1).unwrap_or_default();
            name.split('(').next().unwrap_or_default().to_owned()
        })
        .collect();
    assert!(!omitted.is_empty());
    let shown: File =
        syn::parse_str(&shown.replace("{ .. }", "{}")).expect("the book shows valid code");

    let generated = parts(generated, &omitted);
    let shown = parts(shown, &omitted);
    for part in &shown {
        assert!(
            generated.contains(part),
            "the book shows\n{part:#?}\nwhich is not in\n{generated:#?}"
        );
    }
    // The book omits only the `Debug` implementation of the server.
    for part in &generated {
        let is_debug = part.0.contains("DebugforStoreServer");
        assert!(
            is_debug || shown.contains(part),
            "the book does not show\n{part:#?}"
        );
    }
}
