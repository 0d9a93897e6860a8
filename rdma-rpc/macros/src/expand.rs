//! The generation of a service's trait, server and client.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::model::{Argument, Method, Outcome, Service, Stream};

/// Generates the trait, the server and the client of a service.
pub(crate) fn service(service: &Service) -> TokenStream {
    let (service_trait, server, client) = (as_trait(service), server(service), client(service));
    quote! {
        #service_trait
        #server
        #client
    }
}

/// Generates the trait that the program implements. In place of `async`, each method returns a
/// future that implements `Send`, because handlers run on any thread.
fn as_trait(service: &Service) -> TokenStream {
    let Service {
        attributes,
        visibility,
        name,
        methods,
        ..
    } = service;
    let methods = methods.iter().map(|method| {
        let Method {
            attributes, name, ..
        } = method;
        let arguments = method.order.iter().map(declaration);
        let output = match &method.result {
            Some(Outcome { whole, .. }) => quote!(#whole),
            None => quote!(()),
        };
        quote! {
            #(#attributes)*
            fn #name(
                &self,
                #(#arguments),*
            ) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send;
        }
    });
    quote! {
        #(#attributes)*
        #visibility trait #name: ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#methods)*
        }
    }
}

/// Generates the declaration `name: type` of an argument.
fn declaration(Argument { name, ty }: &Argument) -> TokenStream {
    quote!(#name: #ty)
}

/// Returns the method's name in upper case. The generated constant that contains the `MethodInfo`
/// (number, name and properties) of the method has this name.
fn constant(method: &Method) -> syn::Ident {
    format_ident!("{}", method.name.unraw().to_string().to_uppercase())
}

/// Returns the identifier `name` for a variable of the generated code. A method argument with the
/// same name is a different variable.
fn variable(name: &str) -> syn::Ident {
    syn::Ident::new(name, Span::mixed_site())
}

/// Returns the `cfg` attributes of a method, which also apply to all code generated for the method.
fn conditions(method: &Method) -> impl Iterator<Item = &syn::Attribute> {
    let attributes = method.attributes.iter();
    attributes.filter(|attribute| attribute.path().is_ident("cfg"))
}

/// Generates the type of a method's request: the type of the argument if the method has exactly
/// one, otherwise a tuple of the types of all arguments.
fn request_type(method: &Method) -> TokenStream {
    let types = method.values.iter().map(|value| &value.ty);
    match &method.values[..] {
        [Argument { ty, .. }] => quote!(#ty),
        _ => quote!((#(#types),*)),
    }
}

/// Generates the names of a method's arguments: a single name or a tuple, as in [`request_type`].
/// The generated client uses these tokens as an expression that creates the request. The generated
/// server uses the tokens as a pattern that decomposes the request.
fn request(method: &Method) -> TokenStream {
    let names = method.values.iter().map(|value| &value.name);
    match &method.values[..] {
        [Argument { name, .. }] => quote!(#name),
        _ => quote!((#(#names),*)),
    }
}

/// Generates the type that selects the codecs of a method's request, response and error. The tokens
/// have the source position of the method's first argument. If a codec does not support a type, the
/// compiler reports the error at this position.
fn codecs(service: &Service, method: &Method) -> TokenStream {
    let codec = &service.codec;
    let place = method
        .values
        .first()
        .map_or(method.name.span(), |value| value.ty.span());
    let format = match method.is_raw {
        true => quote!(::rdma_rpc::generated::RawCodec<#codec>),
        false => quote!(::rdma_rpc::generated::ServiceCodec<#codec>),
    };
    respanned(format, place)
}

/// Generates a constant for each method, which contains the `MethodInfo` (number, name and
/// properties) of the method.
fn infos(service: &Service) -> impl Iterator<Item = TokenStream> {
    service.methods.iter().map(|method| {
        let constant = constant(method);
        let (id, name) = (method.id, method.full_name(&service.name));
        let conditions = conditions(method);
        let (has_input, has_output) = (method.input.is_some(), method.output.is_some());
        let (is_one_way, is_once) = (method.is_one_way, method.is_once);
        quote! {
            #(#conditions)*
            const #constant: &'static ::rdma_rpc::generated::MethodInfo =
                &::rdma_rpc::generated::MethodInfo {
                    id: #id,
                    name: #name,
                    has_input: #has_input,
                    has_output: #has_output,
                    is_one_way: #is_one_way,
                    is_once: #is_once,
                };
        }
    })
}

/// Generates the server type `…Server`, which registers a handler for each method.
fn server(service: &Service) -> TokenStream {
    let (name, visibility) = (&service.name, &service.visibility);
    let server = format_ident!("{name}Server");
    let client = format_ident!("{name}Client");
    let doc = format!("Server of [`{name}`]: offers a value that implements the trait.");
    let methods = service.methods.iter().map(|method| {
        let (constant, format) = (constant(method), codecs(service, method));
        let (call, checks) = (call(service, method), checks(service, method));
        let (ty, conditions) = (request_type(method), conditions(method));
        let [service_value, call_value] = ["service", "call"].map(variable);
        let handled = match method.is_once {
            true => quote! {
                ::rdma_rpc::generated::execute_once::<#format, _, _, _, _>(
                    #call_value,
                    move |#call_value: ::rdma_rpc::generated::Call<#ty>| async move { #call },
                )
            },
            false => quote!(async move { #call }),
        };
        quote! {
            #(#conditions)*
            {
                #checks
                let #service_value = ::std::sync::Arc::clone(&self.service);
                methods.add::<#format, _, _, _, _, _>(
                    #client::#constant,
                    move |#call_value: ::rdma_rpc::generated::Call<#ty>| {
                        let #service_value = ::std::sync::Arc::clone(&#service_value);
                        #handled
                    },
                );
            }
        }
    });
    quote! {
        #[doc = #doc]
        #visibility struct #server<S> {
            service: ::std::sync::Arc<S>,
        }

        impl<S: #name> #server<S> {
            /// Creates the server of the service that `service` implements. Pass the returned value
            /// to `rdma_rpc::Server::new`.
            pub fn new(service: S) -> Self {
                Self::shared(::std::sync::Arc::new(service))
            }

            /// Creates the server of the service that `service` implements, for a program that also
            /// uses the value itself.
            pub fn shared(service: ::std::sync::Arc<S>) -> Self {
                Self { service }
            }
        }

        impl<S> ::core::fmt::Debug for #server<S> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!(#server)).finish_non_exhaustive()
            }
        }

        impl<S: #name> ::rdma_rpc::Service for #server<S> {
            fn register(self, methods: &mut ::rdma_rpc::generated::Methods) {
                #(#methods)*
            }
        }
    }
}

/// Generates the body of a handler: decomposes the request, and calls the method of the trait.
fn call(service: &Service, method: &Method) -> TokenStream {
    let (name, pattern, codec) = (&method.name, request(method), &service.codec);
    let [service_value, call_value] = ["service", "call"].map(variable);
    let streams = [(&method.input, "receiver"), (&method.output, "sender")];
    let streams = streams.into_iter().filter_map(|(stream, function)| {
        let Stream { name, item } = stream.as_ref()?;
        let function = format_ident!("{function}");
        Some(quote!(let #name = #call_value.#function::<#codec, #item>();))
    });
    let arguments = method.order.iter().map(|argument| {
        let is_context = method
            .context
            .as_ref()
            .is_some_and(|context| context.name == argument.name);
        let name = &argument.name;
        if is_context {
            quote!(&#call_value.context)
        } else {
            quote!(#name)
        }
    });
    let trait_name = &service.name;
    let called = quote!(#trait_name::#name(&*#service_value, #(#arguments),*).await);
    let done = match method.is_one_way {
        true => quote! {
            #called;
            ::core::result::Result::Ok::<(), ()>(())
        },
        false => called,
    };
    quote! {
        #(#streams)*
        let #pattern = #call_value.request;
        #done
    }
}

/// Generates statements that register the types of a method for reflection. If the codec does not
/// support a type, the compiler reports the error at the type in the trait.
fn checks(service: &Service, method: &Method) -> TokenStream {
    let (codec, constant) = (&service.codec, constant(method));
    let client = format_ident!("{}Client", service.name);
    let mut types: Vec<(&str, String, &syn::Type)> = Vec::new();
    if !method.is_raw {
        for value in &method.values {
            types.push(("Argument", value.name.unraw().to_string(), &value.ty));
        }
        let result = method.result.iter();
        types.extend(result.map(|result| ("Result", String::new(), &result.value)));
    }
    let result = method.result.iter();
    types.extend(result.map(|result| ("Error", String::new(), &result.error)));
    let input = method.input.iter();
    types.extend(input.map(|stream| ("Input", stream.name.unraw().to_string(), &stream.item)));
    let output = method.output.iter();
    types.extend(output.map(|stream| ("Output", stream.name.unraw().to_string(), &stream.item)));
    types
        .into_iter()
        .map(|(role, name, ty)| {
            let (role, text) = (format_ident!("{role}"), text(ty));
            // The span makes the compiler report an unsupported type at its position in the trait.
            let codec = respanned(codec.to_token_stream(), ty.span());
            let part = quote! {
                methods,
                #client::#constant,
                ::rdma_rpc::generated::Role::#role,
                [#name, #text]
            };
            quote_spanned!(ty.span()=> ::rdma_rpc::generated::check::<#codec, #ty>(#part);)
        })
        .collect()
}

/// Returns the source text of a type for reflection, such as `Vec<u8>`, without the spaces that
/// token streams contain.
fn text(ty: &syn::Type) -> String {
    let tokens = ty.to_token_stream().to_string();
    let closed = [
        " <", "< ", " >", " ::", ":: ", " ,", " (", "( ", " )", " [", "[ ", " ]", " ;",
    ];
    closed
        .iter()
        .fold(tokens, |text, spaced| text.replace(spaced, spaced.trim()))
}

/// Returns the tokens with `span` as their position in the source, so that the compiler reports
/// their errors there.
fn respanned(tokens: TokenStream, span: Span) -> TokenStream {
    let moved = tokens.into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    moved.collect()
}

/// Generates the client type `…Client`, with a function for each method.
fn client(service: &Service) -> TokenStream {
    let (name, visibility) = (&service.name, &service.visibility);
    let client = format_ident!("{name}Client");
    let doc = format!("Client of [`{name}`]. Clones share the connection.");
    let infos = infos(service);
    let methods = service
        .methods
        .iter()
        .map(|method| client_method(service, method));
    quote! {
        #[doc = #doc]
        #[derive(Debug, Clone)]
        #visibility struct #client {
            client: ::rdma_rpc::Client,
        }

        impl #client {
            #(#infos)*

            /// Creates a client of the service that makes its calls through `client`.
            pub fn new(client: ::rdma_rpc::Client) -> Self {
                Self { client }
            }

            /// Connects to the server at an address.
            ///
            /// # Errors
            ///
            /// The errors of `rdma_rpc::Client::connect`.
            pub async fn connect(
                address: impl ::rdma_rpc::ToAddress,
            ) -> ::core::result::Result<Self, ::rdma_rpc::Error> {
                ::rdma_rpc::Client::connect(address).await.map(Self::new)
            }

            /// Returns the client that this type uses, for example to allocate bulk memory.
            pub fn client(&self) -> &::rdma_rpc::Client {
                &self.client
            }

            /// Returns a client on the same connection whose calls must be answered within `limit`.
            #[must_use]
            pub fn with_deadline(&self, limit: ::core::time::Duration) -> Self {
                Self::new(self.client.with_deadline(limit))
            }

            /// Returns a client on the same connection whose requests are sent with this metadata.
            #[must_use]
            pub fn with_metadata(&self, metadata: ::rdma_rpc::Metadata) -> Self {
                Self::new(self.client.with_metadata(metadata))
            }

            #(#methods)*
        }
    }
}

/// Generates the client's function for a method. The signature depends on the streams and the
/// options of the method.
fn client_method(service: &Service, method: &Method) -> TokenStream {
    let Method {
        attributes, name, ..
    } = method;
    let (constant, format) = (constant(method), codecs(service, method));
    let docs = attributes.iter().filter(|attribute| {
        ["doc", "cfg", "deprecated"]
            .iter()
            .any(|known| attribute.path().is_ident(known))
    });
    let doc = format!("Calls `{}`.", method.full_name(&service.name));
    let head = quote! {
        #[doc = #doc]
        ///
        #(#docs)*
    };
    let Some(Outcome { value, error, .. }) = &method.result else {
        let (arguments, request) = (method.values.iter().map(declaration), request(method));
        return quote! {
            #head
            pub async fn #name(
                &self,
                #(#arguments),*
            ) -> ::core::result::Result<(), ::rdma_rpc::Error> {
                self.client.one_way::<#format, _>(Self::#constant, #request).await
            }
        };
    };
    if method.is_raw {
        let argument = &method.values[0].name;
        return quote! {
            #head
            pub async fn #name(
                &self,
                #argument: impl ::core::convert::AsRef<[u8]>,
            ) -> ::core::result::Result<::rdma_rpc::Payload, ::rdma_rpc::CallError<#error>> {
                self.client.unary::<#format, _, _, _>(Self::#constant, #argument).await
            }
        };
    }
    let arguments = method.values.iter().map(declaration);
    let request = request(method);
    let (function, output) = match (&method.input, &method.output) {
        (None, None) => {
            let output = quote!(::core::result::Result<#value, ::rdma_rpc::CallError<#error>>);
            (quote!(unary::<#format, _, _, _>), output)
        }
        (Some(Stream { item, .. }), None) => (
            quote!(upload::<#format, _, #item, #value, #error>),
            quote!(::core::result::Result<
                (::rdma_rpc::Sender<#item>, ::rdma_rpc::Response<#value, #error>),
                ::rdma_rpc::Error,
            >),
        ),
        (None, Some(Stream { item, .. })) => (
            quote!(download::<#format, _, #item, #value, #error>),
            quote!(::core::result::Result<
                ::rdma_rpc::Streaming<#item, #value, #error>,
                ::rdma_rpc::Error,
            >),
        ),
        (Some(Stream { item: sent, .. }), Some(Stream { item, .. })) => (
            quote!(exchange::<#format, _, #sent, #item, #value, #error>),
            quote!(::core::result::Result<
                (
                    ::rdma_rpc::Sender<#sent>,
                    ::rdma_rpc::Streaming<#item, #value, #error>,
                ),
                ::rdma_rpc::Error,
            >),
        ),
    };
    quote! {
        #head
        pub async fn #name(&self, #(#arguments),*) -> #output {
            self.client.#function(Self::#constant, #request).await
        }
    }
}
