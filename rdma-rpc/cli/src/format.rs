//! Conversion of the descriptions of methods, types and formats to text in the syntax of Rust, for
//! the output of `list`.

use rdma_rpc::{Fields, Format, MethodDescription, TypeDescription, TypeFormat};

/// Returns the signature of a method, for example
/// `Store.get(key: String) -> Result<Vec<u8>, String>`.
pub(crate) fn signature(method: &MethodDescription) -> String {
    let named = |described: &TypeDescription| format!("{}: {}", described.name, described.text);
    let streamed = |described: &TypeDescription, kind: &str| {
        format!("{}: {kind}<{}>", described.name, described.text)
    };
    let arguments = method.arguments.iter().map(named);
    let input = method.input.iter().map(|input| streamed(input, "Receiver"));
    let output = method
        .output
        .iter()
        .map(|output| streamed(output, "Sender"));
    let arguments: Vec<_> = arguments.chain(input).chain(output).collect();
    let (arguments, name) = (arguments.join(", "), &method.name);
    match (&method.result, &method.error) {
        (Some(result), Some(error)) => {
            format!(
                "{name}({arguments}) -> Result<{}, {}>",
                result.text, error.text
            )
        }
        (None, Some(error)) => format!("{name}(bytes) -> Result<bytes, {}>", error.text),
        _ => format!("{name}({arguments})"),
    }
}

/// Returns the definition of a struct or enum in the syntax of Rust, on one line.
pub(crate) fn type_text(name: &str, format: &TypeFormat) -> String {
    match format {
        TypeFormat::Struct(fields) => format!("struct {name}{}", fields_text(fields)),
        TypeFormat::Enum(variants) => {
            let variants = variants.iter().map(|(name, fields)| {
                let fields = fields.as_ref().map_or_else(String::new, fields_text);
                format!("{name}{fields}")
            });
            let variants: Vec<_> = variants.collect();
            format!("enum {name} {{ {} }}", variants.join(", "))
        }
        _ => name.to_owned(),
    }
}

/// Returns the fields of a struct or variant in the syntax of Rust, as they follow its name; empty
/// without fields.
fn fields_text(fields: &Fields) -> String {
    match fields {
        Fields::Newtype(format) => format!("({})", text(format)),
        Fields::Tuple(formats) => format!("({})", join(formats)),
        Fields::Named(fields) => {
            let fields = fields
                .iter()
                .map(|(name, format)| format!("{name}: {}", text(format)));
            format!(" {{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        _ => String::new(),
    }
}

/// Returns the types of formats, separated by commas.
fn join(formats: &[Format]) -> String {
    let texts: Vec<_> = formats.iter().map(text).collect();
    texts.join(", ")
}

/// Returns the name of the Rust type that a format corresponds to, for example `Vec<u8>`.
pub(crate) fn text(format: &Format) -> String {
    match format {
        Format::Unit => "()".to_owned(),
        Format::Str => "String".to_owned(),
        Format::Option(inner) => format!("Option<{}>", text(inner)),
        Format::Seq(inner) => format!("Vec<{}>", text(inner)),
        Format::Map(key, value) => format!("Map<{}, {}>", text(key), text(value)),
        Format::Tuple(formats) => format!("({})", join(formats)),
        Format::Named(name) => name.clone(),
        other => format!("{other:?}").to_lowercase(),
    }
}
