//! The options in `#[service(…)]` and `#[rpc(…)]`.

use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Error, Ident, LitInt, Path, Result, Token, parse_quote};

/// Options of the attribute `service` of a trait.
pub(crate) struct ServiceOptions {
    pub(crate) codec: Path,
}

impl Parse for ServiceOptions {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut codec = parse_quote!(::rdma_rpc::Postcard);
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            if name != "codec" {
                let message = "unknown option: `service` has the option `codec = …`";
                return Err(Error::new(name.span(), message));
            }
            input.parse::<Token![=]>()?;
            codec = input.parse()?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(Self { codec })
    }
}

/// Options of the attribute `rpc` of a method. An option without a value is stored as its
/// identifier, which contains the position for error messages.
#[derive(Default)]
pub(crate) struct MethodOptions {
    pub(crate) one_way: Option<Ident>,
    pub(crate) raw: Option<Ident>,
    pub(crate) once: Option<Ident>,
    pub(crate) id: Option<u32>,
}

impl MethodOptions {
    /// Removes the `rpc` attributes of a method, and returns their options.
    pub(crate) fn take(attributes: &mut Vec<Attribute>) -> Result<Self> {
        let mut options = Self::default();
        for attribute in attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("rpc"))
        {
            attribute.parse_nested_meta(|meta| {
                let Some(name) = meta.path.get_ident() else {
                    return Err(meta.error(UNKNOWN));
                };
                match name.to_string().as_str() {
                    "oneway" => options.one_way = Some(name.clone()),
                    "raw" => options.raw = Some(name.clone()),
                    "once" => options.once = Some(name.clone()),
                    "id" => {
                        let number: LitInt = meta.value()?.parse()?;
                        options.id = Some(number.base10_parse()?);
                    }
                    _ => return Err(meta.error(UNKNOWN)),
                }
                Ok(())
            })?;
        }
        attributes.retain(|attribute| !attribute.path().is_ident("rpc"));
        Ok(options)
    }
}

/// Error message for an unknown option of the attribute `rpc`.
const UNKNOWN: &str = "unknown option: `rpc` has the options `oneway`, `raw`, `once` and `id = …`";
