//! [`Service`]: the parts of a trait with the attribute `service`, after all checks.

use std::collections::HashMap;

use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Generics, Ident, ItemTrait, Pat, Path, PathArguments,
    ReceiverKind, Result, ReturnType, TraitItem, TraitItemFn, Type, TypePath, Visibility,
};

use crate::options::{MethodOptions, ServiceOptions};

/// Names of the functions that every generated client has. The methods of a service cannot have
/// these names.
const RESERVED: [&str; 5] = ["new", "connect", "client", "with_deadline", "with_metadata"];

/// Trait with the attribute `service`, after all checks. The macro generates the client and the
/// server from this value.
pub(crate) struct Service {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) name: Ident,
    pub(crate) codec: Path,
    pub(crate) methods: Vec<Method>,
}

/// A method of a trait with the attribute `service`, and its options in `#[rpc(…)]`.
pub(crate) struct Method {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) name: Ident,
    pub(crate) id: u32,
    pub(crate) is_raw: bool,
    pub(crate) is_one_way: bool,
    pub(crate) is_once: bool,
    /// The context argument, if the method has one.
    pub(crate) context: Option<Argument>,
    /// Arguments that are sent in the request.
    pub(crate) values: Vec<Argument>,
    /// Stream from the caller.
    pub(crate) input: Option<Stream>,
    /// Stream to the caller.
    pub(crate) output: Option<Stream>,
    /// All arguments in their order in the trait.
    pub(crate) order: Vec<Argument>,
    /// Result type; `None` for a one-way method.
    pub(crate) result: Option<Outcome>,
}

/// Name and type of an argument of a method.
#[derive(Clone)]
pub(crate) struct Argument {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

/// Name and item type of an argument `Receiver<item>` or `Sender<item>`.
pub(crate) struct Stream {
    pub(crate) name: Ident,
    pub(crate) item: Type,
}

/// Result type of a method: `whole` is the type `Result<value, error>`.
pub(crate) struct Outcome {
    pub(crate) whole: Type,
    pub(crate) value: Type,
    pub(crate) error: Type,
}

/// Compile errors that were found so far. All errors of a trait are reported together.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    /// Adds an error with the text `message` if the checked condition `is_right` is false. The
    /// error has the source position of `place`.
    fn check(&mut self, is_right: bool, place: &impl Spanned, message: &str) {
        if !is_right {
            self.add(Error::new(place.span(), message));
        }
    }

    /// Adds an error with the text `message` if `generics` contains parameters or a `where` clause.
    fn check_generics(&mut self, generics: &Generics, message: &str) {
        self.check(generics.params.is_empty(), &generics.params, message);
        if let Some(bounds) = &generics.where_clause {
            self.check(false, bounds, message);
        }
    }
}

impl Service {
    /// Checks a trait and splits it into its parts. Returns all errors together, each at its
    /// position in the source.
    pub(crate) fn new(options: ServiceOptions, item: ItemTrait) -> Result<Self> {
        let mut errors = Errors::default();
        errors.check_generics(&item.generics, "a service has no generic parameters");
        errors.check(
            item.supertraits.is_empty(),
            &item.supertraits,
            "a service has no supertraits: `Send + Sync + 'static` are added",
        );
        let mut methods = Vec::new();
        let mut ids: HashMap<u32, Ident> = HashMap::new();
        for item_of_trait in item.items {
            let TraitItem::Fn(function) = item_of_trait else {
                errors.check(false, &item_of_trait, "a service has only methods");
                continue;
            };
            match Method::new(&item.ident, function) {
                Ok(method) => {
                    if let Some(other) = ids.insert(method.id, method.name.clone()) {
                        let message = format!(
                            "the methods `{other}` and `{}` have the same number {:#010x}: set another \
                             one with `#[rpc(id = …)]`",
                            method.name, method.id
                        );
                        errors.add(Error::new(method.name.span(), message));
                    }
                    methods.push(method);
                }
                Err(error) => errors.add(error),
            }
        }
        match errors.0 {
            Some(error) => Err(error),
            None => Ok(Self {
                attributes: item.attrs,
                visibility: item.vis,
                name: item.ident,
                codec: options.codec,
                methods,
            }),
        }
    }
}

impl Method {
    /// Checks a method of the trait `service` and splits it into its parts.
    fn new(service: &Ident, mut function: TraitItemFn) -> Result<Self> {
        let options = MethodOptions::take(&mut function.attrs)?;
        let mut errors = Errors::default();
        let signature = function.sig;
        let name = signature.ident;
        errors.check(
            signature.asyncness.is_some(),
            &signature.fn_token,
            "a method of a service is `async`",
        );
        errors.check_generics(
            &signature.generics,
            "a method of a service has no generic parameters",
        );
        errors.check(
            function.default.is_none(),
            &function.default,
            "a method of a service has no body: its server implements it",
        );
        let text = name.unraw().to_string();
        errors.check(
            !RESERVED.contains(&text.as_str()),
            &name,
            "the generated client has another function of this name",
        );
        let mut arguments = signature.inputs.into_iter();
        match arguments.next() {
            Some(FnArg::Receiver(this)) => {
                let is_shared = matches!(this.kind, ReceiverKind::Reference(_, _, None));
                errors.check(is_shared, &this, "a method of a service takes `&self`");
            }
            Some(other) => {
                errors.check(false, &other, "a method of a service takes `&self` first");
            }
            None => errors.check(false, &name, "a method of a service takes `&self`"),
        }
        let mut method = Self {
            attributes: function.attrs,
            id: options
                .id
                .unwrap_or_else(|| hash(&full_name(service, &name))),
            is_raw: options.raw.is_some(),
            is_one_way: options.one_way.is_some(),
            is_once: options.once.is_some(),
            name,
            context: None,
            values: Vec::new(),
            input: None,
            output: None,
            order: Vec::new(),
            result: None,
        };
        for argument in arguments {
            if let Err(error) = method.add(argument) {
                errors.add(error);
            }
        }
        if let Err(error) = method.set_result(&signature.output) {
            errors.add(error);
        }
        let has_streams = method.input.is_some() || method.output.is_some();
        if let Some(one_way) = &options.one_way {
            errors.check(!has_streams, one_way, "a one-way method has no streams");
        }
        if let Some(once) = &options.once {
            let is_right = !has_streams && !method.is_one_way;
            errors.check(
                is_right,
                once,
                "a method that is executed at most once has a response and no streams",
            );
        }
        if let Some(raw) = &options.raw {
            let is_right = !has_streams && !method.is_one_way && method.values.len() == 1;
            errors.check(
                is_right,
                raw,
                "a raw method takes one `Payload` besides the context, and returns bytes",
            );
        }
        match errors.0 {
            Some(error) => Err(error),
            None => Ok(method),
        }
    }

    /// Returns the name of the service and the method, for example `Store.get`.
    pub(crate) fn full_name(&self, service: &Ident) -> String {
        full_name(service, &self.name)
    }

    /// Adds an argument to this method. The type of the argument determines the role: the context
    /// of the call, a stream, or a value of the request.
    fn add(&mut self, argument: FnArg) -> Result<()> {
        let FnArg::Typed(argument) = argument else {
            return Err(Error::new(argument.span(), "`self` is the first argument"));
        };
        let Pat::Ident(pattern) = &*argument.pat else {
            return Err(Error::new(argument.pat.span(), "an argument has a name"));
        };
        let (name, ty) = (pattern.ident.clone(), *argument.ty);
        let whole = Argument {
            name: name.clone(),
            ty: ty.clone(),
        };
        if let Type::Reference(reference) = &ty {
            let is_context = last(&reference.elem).is_some_and(|(name, _)| name == "Context");
            if !is_context || reference.mutability.is_some() {
                let message = "an argument is an owned value, except `&Context`";
                return Err(Error::new(ty.span(), message));
            }
            if self.context.is_some() || !self.order.is_empty() {
                return Err(Error::new(ty.span(), "the context is the first argument"));
            }
            self.context = Some(whole.clone());
        } else {
            let stream = last(&ty).and_then(|(kind, arguments)| {
                let is_input = match kind.to_string().as_str() {
                    "Receiver" => true,
                    "Sender" => false,
                    _ => return None,
                };
                let [item] = &arguments[..] else { return None };
                Some((is_input, (*item).clone()))
            });
            match stream {
                Some((is_input, item)) => {
                    let place = if is_input {
                        &mut self.input
                    } else {
                        &mut self.output
                    };
                    if place.is_some() {
                        let message = "a method has at most one stream in each direction";
                        return Err(Error::new(ty.span(), message));
                    }
                    *place = Some(Stream { name, item });
                }
                None => self.values.push(whole.clone()),
            }
        }
        self.order.push(whole);
        Ok(())
    }

    /// Checks that the method returns `Result<T, E>`, or nothing if the method is one-way, and
    /// stores the types.
    fn set_result(&mut self, output: &ReturnType) -> Result<()> {
        const RESULT: &str =
            "a method of a service returns `Result<T, E>`, except a one-way method";
        let whole = match output {
            ReturnType::Default if self.is_one_way => return Ok(()),
            ReturnType::Default => return Err(Error::new(self.name.span(), RESULT)),
            ReturnType::Type(_, whole) if self.is_one_way => {
                return Err(Error::new(whole.span(), "a one-way method returns nothing"));
            }
            ReturnType::Type(_, whole) => whole,
        };
        match last(whole) {
            Some((name, arguments)) if name == "Result" && arguments.len() == 2 => {
                self.result = Some(Outcome {
                    whole: (**whole).clone(),
                    value: arguments[0].clone(),
                    error: arguments[1].clone(),
                });
                Ok(())
            }
            _ => Err(Error::new(whole.span(), RESULT)),
        }
    }
}

/// Returns the name of a method with its service, for example `Store.get`. The hash of this name is
/// the default number of the method.
fn full_name(service: &Ident, method: &Ident) -> String {
    format!("{}.{}", service.unraw(), method.unraw())
}

/// Returns the last segment of a path type and its type arguments: `Sender` and `u32` for
/// `rdma_rpc::Sender<u32>`. Returns `None` for any other type.
fn last(ty: &Type) -> Option<(&Ident, Vec<&Type>)> {
    let Type::Path(TypePath {
        qself: None, path, ..
    }) = ty
    else {
        return None;
    };
    let segment = path.segments.last()?;
    let types = match &segment.arguments {
        PathArguments::AngleBracketed(arguments) => arguments
            .args
            .iter()
            .filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    Some((&segment.ident, types))
}

/// Returns the default number of a method: the 32-bit FNV-1a hash of its name.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn method_numbers_are_stable() {
        // Test vectors of FNV-1a.
        assert_eq!(hash(""), 0x811c_9dc5);
        assert_eq!(hash("a"), 0xe40c_292c);
        assert_eq!(hash("foobar"), 0xbf9c_f968);
    }
}
