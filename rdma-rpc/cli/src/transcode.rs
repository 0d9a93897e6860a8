//! Conversion of values between JSON and Postcard according to a schema.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use rdma_rpc::{Fields, Format, TypeFormat};
use serde_json::{Map, Number, Value, json};

/// Maximum nesting depth of a value, which limits the use of the stack. The schema comes from the
/// server, and a malicious schema may describe a type that contains itself.
const MAX_DEPTH: usize = 128;

/// Number of values that a decoded value may contain in addition to four per byte. Without a limit,
/// a few bytes could represent any number of zero-sized values.
const EXTRA_VALUES: usize = 1 << 16;

/// Structs and enums to which the formats of a schema refer, by name.
type Types = BTreeMap<String, TypeFormat>;

/// Position in a value that is being converted: the structs and enums of the schema, and the
/// nesting depth.
#[derive(Clone, Copy)]
struct Scope<'t> {
    types: &'t Types,
    depth: usize,
}

impl<'t> Scope<'t> {
    fn new(types: &'t Types) -> Self {
        Self { types, depth: 0 }
    }

    /// Returns the position of a value within the current value. Fails if the value is nested too
    /// deeply.
    fn inner(self) -> anyhow::Result<Self> {
        if self.depth == MAX_DEPTH {
            bail!("the value is nested more than {MAX_DEPTH} times");
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }
}

/// Encodes a JSON value as Postcard, and appends the bytes to `out`. `format` is the format of the
/// value, and `types` are the structs and enums that the format refers to.
pub(crate) fn encode(
    value: &Value,
    format: &Format,
    types: &Types,
    out: &mut Vec<u8>,
) -> anyhow::Result<()> {
    encode_in(Scope::new(types), value, format, out)
}

/// Encodes a value like [`encode`]. `scope` is the position of the outer value.
fn encode_in(
    scope: Scope<'_>,
    value: &Value,
    format: &Format,
    out: &mut Vec<u8>,
) -> anyhow::Result<()> {
    let scope = scope.inner()?;
    let signed = || {
        value
            .as_i64()
            .with_context(|| format!("{value} is not a signed number"))
    };
    let unsigned = || {
        value
            .as_u64()
            .with_context(|| format!("{value} is not an unsigned number"))
    };
    let float = || {
        value
            .as_f64()
            .with_context(|| format!("{value} is not a number"))
    };
    let text = || {
        value
            .as_str()
            .with_context(|| format!("{value} is not a string"))
    };
    let list = || {
        value
            .as_array()
            .with_context(|| format!("{value} is not an array"))
    };
    match format {
        Format::Unit => {}
        Format::Bool => {
            let bool = value.as_bool();
            out.push(
                bool.with_context(|| format!("{value} is not a bool"))?
                    .into(),
            );
        }
        Format::I8 => out.push(i8::try_from(signed()?)?.cast_unsigned()),
        Format::U8 => out.push(u8::try_from(unsigned()?)?),
        Format::I16 => zigzag(i16::try_from(signed()?)?.into(), out),
        Format::I32 => zigzag(i32::try_from(signed()?)?.into(), out),
        Format::I64 | Format::I128 => zigzag(signed()?.into(), out),
        Format::U16 => varint(u16::try_from(unsigned()?)?.into(), out),
        Format::U32 => varint(u32::try_from(unsigned()?)?.into(), out),
        Format::U64 | Format::U128 => varint(unsigned()?.into(), out),
        Format::F32 => out.extend((float()? as f32).to_le_bytes()),
        Format::F64 => out.extend(float()?.to_le_bytes()),
        Format::Str | Format::Char => bytes(text()?.as_bytes(), out),
        Format::Bytes => bytes(&numbers(list()?)?, out),
        Format::Option(inner) => match value {
            Value::Null => out.push(0),
            value => {
                out.push(1);
                encode_in(scope, value, inner, out)?;
            }
        },
        Format::Seq(inner) => {
            let items = list()?;
            varint(items.len() as u128, out);
            for item in items {
                encode_in(scope, item, inner, out)?;
            }
        }
        Format::Map(key, inner) => {
            let entries = value
                .as_object()
                .with_context(|| format!("{value} is not an object"))?;
            varint(entries.len() as u128, out);
            for (name, entry) in entries {
                // JSON keys are strings. A key of another type is encoded as JSON within the
                // string.
                let name = match **key {
                    Format::Str => Value::String(name.clone()),
                    _ => serde_json::from_str(name)?,
                };
                encode_in(scope, &name, key, out)?;
                encode_in(scope, entry, inner, out)?;
            }
        }
        Format::Tuple(formats) => encode_all(scope, list()?, formats, out)?,
        Format::Named(name) => match scope.types.get(name) {
            Some(TypeFormat::Struct(fields)) => encode_fields(scope, value, fields, out)?,
            Some(TypeFormat::Enum(variants)) => {
                let (chosen, fields) = match value {
                    Value::String(name) => (name, &Value::Null),
                    Value::Object(object) if object.len() == 1 => {
                        object.iter().next().context("an object with one field")?
                    }
                    _ => bail!("{value} is not a variant of {name}"),
                };
                let index = variants.iter().position(|(name, _)| name == chosen);
                let index = index.with_context(|| format!("{name} has no variant {chosen}"))?;
                varint(index as u128, out);
                let format = variants[index].1.as_ref();
                let format = format.with_context(|| format!("{chosen} is not described"))?;
                encode_fields(scope, fields, format, out)?;
            }
            _ => bail!("the type {name} is not described"),
        },
        other => bail!("{other:?} cannot be encoded"),
    }
    Ok(())
}

/// Encodes the values of a tuple, each in its format. Fails if the numbers of values and formats
/// differ.
fn encode_all(
    scope: Scope<'_>,
    values: &[Value],
    formats: &[Format],
    out: &mut Vec<u8>,
) -> anyhow::Result<()> {
    if values.len() != formats.len() {
        bail!("{} values instead of {}", values.len(), formats.len());
    }
    let mut pairs = values.iter().zip(formats);
    pairs.try_for_each(|(value, format)| encode_in(scope, value, format, out))
}

/// Encodes the fields of a struct or variant from a JSON value: an object for fields with names, an
/// array for a tuple. A missing field is encoded as `null`.
fn encode_fields(
    scope: Scope<'_>,
    value: &Value,
    fields: &Fields,
    out: &mut Vec<u8>,
) -> anyhow::Result<()> {
    match fields {
        Fields::Newtype(format) => encode_in(scope, value, format, out),
        Fields::Tuple(formats) => {
            let values = value
                .as_array()
                .with_context(|| format!("{value} is not an array"))?;
            encode_all(scope, values, formats, out)
        }
        Fields::Named(fields) => {
            let object = value
                .as_object()
                .with_context(|| format!("{value} is not an object"))?;
            if let Some(name) = object
                .keys()
                .find(|name| fields.iter().all(|(field, _)| field != *name))
            {
                bail!("there is no field {name}");
            }
            fields.iter().try_for_each(|(name, format)| {
                let value = object.get(name).unwrap_or(&Value::Null);
                encode_in(scope, value, format, out).with_context(|| format!("field {name}"))
            })
        }
        _ => Ok(()),
    }
}

/// Converts an array of JSON numbers to bytes. Fails if an element is not a number up to 255.
fn numbers(values: &[Value]) -> anyhow::Result<Vec<u8>> {
    let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let bytes: Option<Vec<u8>> = values.iter().map(byte).collect();
    bytes.context("bytes are numbers up to 255")
}

/// Appends a byte string to `out`: its length and its bytes.
fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint(bytes.len() as u128, out);
    out.extend(bytes);
}

/// Appends a number to `out` as a variable-length integer: 7 bits per byte, the lowest bits first.
fn varint(mut number: u128, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a signed number to `out` as a variable-length integer in zigzag encoding, which stores
/// the sign in the lowest bit.
fn zigzag(number: i128, out: &mut Vec<u8>) {
    varint(((number << 1) ^ (number >> 127)).cast_unsigned(), out);
}

/// Decodes a Postcard value to JSON. `format` is the format of the value, and `types` are the
/// structs and enums that the format refers to.
pub(crate) fn decode(bytes: &[u8], format: &Format, types: &Types) -> anyhow::Result<Value> {
    let left = bytes.len().saturating_mul(4).saturating_add(EXTRA_VALUES);
    let mut input = Input { bytes, left };
    decode_in(Scope::new(types), &mut input, format)
}

/// The unread bytes of an encoded value, and a limit for the number of values within it.
struct Input<'i> {
    bytes: &'i [u8],
    /// Number of values that may still be decoded.
    left: usize,
}

impl Input<'_> {
    /// Fails if the limit of decoded values does not allow `count` further values.
    fn check(&self, count: usize) -> anyhow::Result<()> {
        if count > self.left {
            bail!("the value has too many parts for its length");
        }
        Ok(())
    }
}

/// Decodes a value like [`decode`], from the start of `input`. `scope` is the position of the outer
/// value.
fn decode_in(scope: Scope<'_>, input: &mut Input<'_>, format: &Format) -> anyhow::Result<Value> {
    let scope = scope.inner()?;
    input.check(1)?;
    input.left -= 1;
    Ok(match format {
        Format::Unit => Value::Null,
        Format::Bool => json!(take::<1>(input)?[0] != 0),
        Format::I8 => json!(i8::from_le_bytes(take(input)?)),
        Format::U8 => json!(take::<1>(input)?[0]),
        Format::I16 | Format::I32 | Format::I64 | Format::I128 => {
            let number = unvarint(input)?;
            let number = (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
            i64::try_from(number).map_or_else(|_| json!(number.to_string()), |number| json!(number))
        }
        Format::U16 | Format::U32 | Format::U64 | Format::U128 => {
            let number = unvarint(input)?;
            u64::try_from(number).map_or_else(|_| json!(number.to_string()), |number| json!(number))
        }
        Format::F32 => float(f32::from_le_bytes(take(input)?).into()),
        Format::F64 => float(f64::from_le_bytes(take(input)?)),
        Format::Str | Format::Char => {
            let len = len(input)?;
            Value::String(std::str::from_utf8(split(input, len)?)?.to_owned())
        }
        Format::Bytes => {
            let len = len(input)?;
            json!(split(input, len)?)
        }
        Format::Option(inner) => match take::<1>(input)?[0] {
            0 => Value::Null,
            _ => decode_in(scope, input, inner)?,
        },
        Format::Seq(inner) => {
            let count = len(input)?;
            input.check(count)?;
            let items = (0..count).map(|_| decode_in(scope, input, inner));
            Value::Array(items.collect::<anyhow::Result<_>>()?)
        }
        Format::Map(key, inner) => {
            let mut entries = Map::new();
            let count = len(input)?;
            input.check(count)?;
            for _ in 0..count {
                let name = match decode_in(scope, input, key)? {
                    Value::String(name) => name,
                    other => other.to_string(),
                };
                entries.insert(name, decode_in(scope, input, inner)?);
            }
            Value::Object(entries)
        }
        Format::Tuple(formats) => decode_all(scope, input, formats)?,
        Format::Named(name) => match scope.types.get(name) {
            Some(TypeFormat::Struct(fields)) => decode_fields(scope, input, fields)?,
            Some(TypeFormat::Enum(variants)) => {
                let variant = variants.get(len(input)?);
                let (name, fields) =
                    variant.with_context(|| format!("an unknown variant of {name}"))?;
                match fields {
                    Some(Fields::Unit) => json!(name),
                    Some(fields) => {
                        let fields = decode_fields(scope, input, fields)?;
                        Value::Object(Map::from_iter([(name.clone(), fields)]))
                    }
                    None => bail!("the variant {name} is not described"),
                }
            }
            _ => bail!("the type {name} is not described"),
        },
        other => bail!("{other:?} cannot be decoded"),
    })
}

/// Decodes the values of a tuple to a JSON array.
fn decode_all(
    scope: Scope<'_>,
    input: &mut Input<'_>,
    formats: &[Format],
) -> anyhow::Result<Value> {
    let values = formats.iter().map(|format| decode_in(scope, input, format));
    Ok(Value::Array(values.collect::<anyhow::Result<_>>()?))
}

/// Decodes the fields of a struct or variant to a JSON object or array, or to the value of a single
/// field without a name.
fn decode_fields(
    scope: Scope<'_>,
    input: &mut Input<'_>,
    fields: &Fields,
) -> anyhow::Result<Value> {
    match fields {
        Fields::Newtype(format) => decode_in(scope, input, format),
        Fields::Tuple(formats) => decode_all(scope, input, formats),
        Fields::Named(fields) => {
            let mut object = Map::new();
            for (name, format) in fields {
                object.insert(name.clone(), decode_in(scope, input, format)?);
            }
            Ok(Value::Object(object))
        }
        _ => Ok(Value::Null),
    }
}

/// Converts a floating-point number to JSON: to a number if possible, otherwise to a string.
fn float(number: f64) -> Value {
    // JSON cannot represent infinity and NaN as numbers.
    Number::from_f64(number).map_or_else(|| json!(number.to_string()), Value::Number)
}

/// Reads the next `N` bytes of the input.
fn take<const N: usize>(input: &mut Input<'_>) -> anyhow::Result<[u8; N]> {
    let (taken, rest) = input
        .bytes
        .split_first_chunk()
        .context("the encoded value is truncated")?;
    input.bytes = rest;
    Ok(*taken)
}

/// Reads the next `len` bytes of the input.
fn split<'i>(input: &mut Input<'i>, len: usize) -> anyhow::Result<&'i [u8]> {
    let (taken, rest) = input
        .bytes
        .split_at_checked(len)
        .context("the encoded value is truncated")?;
    input.bytes = rest;
    Ok(taken)
}

/// Reads a variable-length integer that is a length or the number of a variant.
fn len(input: &mut Input<'_>) -> anyhow::Result<usize> {
    Ok(usize::try_from(unvarint(input)?)?)
}

/// Reads a variable-length integer, in the encoding of [`varint`].
fn unvarint(input: &mut Input<'_>) -> anyhow::Result<u128> {
    let (mut number, mut shift) = (0_u128, 0);
    loop {
        let [byte] = take(input)?;
        if shift > 126 {
            bail!("a number is too long");
        }
        number |= u128::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Format {
        Format::Named(name.to_owned())
    }

    fn types(all: &[(&str, Fields)]) -> Types {
        let all = all.iter().cloned();
        all.map(|(name, fields)| (name.to_owned(), TypeFormat::Struct(fields)))
            .collect()
    }

    #[test]
    fn a_type_that_contains_itself_is_an_error() {
        let types = types(&[("Recursive", Fields::Newtype(named("Recursive")))]);
        let error = decode(&[], &named("Recursive"), &types).unwrap_err();
        assert!(error.to_string().contains("nested"), "{error}");
        let encoded = encode(&Value::Null, &named("Recursive"), &types, &mut Vec::new());
        assert!(encoded.unwrap_err().to_string().contains("nested"));
    }

    #[test]
    fn the_number_of_zero_sized_values_is_limited() {
        let units = Format::Seq(Box::new(Format::Unit));
        let few = decode(&[3], &units, &Types::new()).unwrap();
        assert_eq!(few, json!([null, null, null]));
        let mut many = Vec::new();
        varint(1 << 40, &mut many);
        for format in [
            units.clone(),
            Format::Map(Box::new(Format::Unit), Box::new(Format::Unit)),
        ] {
            let error = decode(&many, &format, &Types::new()).unwrap_err();
            assert!(error.to_string().contains("parts"), "{error}");
        }
        // Each type contains two values of the next type.
        let doubles = (0..100).map(|at| {
            let next = named(&(at + 1).to_string());
            let fields = Fields::Tuple(vec![next.clone(), next]);
            (at.to_string(), TypeFormat::Struct(fields))
        });
        let mut doubles: Types = doubles.collect();
        doubles.insert("100".to_owned(), TypeFormat::Struct(Fields::Unit));
        let error = decode(&[], &named("0"), &doubles).unwrap_err();
        assert!(error.to_string().contains("parts"), "{error}");
    }
}
