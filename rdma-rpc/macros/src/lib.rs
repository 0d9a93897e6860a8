//! Implementation of the attribute `service`, which generates the client and the server of a
//! service from a trait. The crate rdma-rpc re-exports and documents the attribute.

#![forbid(unsafe_code)]

#[cfg(test)]
mod book;
mod expand;
mod model;
mod options;

use proc_macro::TokenStream;
use syn::parse_macro_input;

use crate::model::Service;
use crate::options::ServiceOptions;

// The documentation is at the re-export in rdma-rpc.
#[allow(missing_docs, reason = "rdma-rpc documents the attribute")]
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as ServiceOptions);
    let item = parse_macro_input!(item as syn::ItemTrait);
    match Service::new(options, item) {
        Ok(service) => expand::service(&service).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
