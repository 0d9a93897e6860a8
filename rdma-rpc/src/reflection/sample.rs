//! Determines the structure of a type, for reflection, by decoding sample values of the type.
//!
//! Serde does not describe types, but the `Deserialize` implementation of a type requests the
//! formats of its fields from a deserializer. Each *pass* decodes one sample value with a
//! deserializer that records these requests. An enum gets a variant that no earlier pass has used.
//! The passes end when every variant was used.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::schema::{Fields, Format, Schema, TypeFormat};
use crate::bulk;

/// Maximum number of sample values that are decoded to find the structure of one type. Each sample
/// value shows the fields of only one variant per enum. The limit bounds the time for types with
/// many variants: the fields of the remaining variants stay unknown.
const MAX_PASSES: usize = 500;

/// Maximum nesting depth of types in a sample value. Sequences and options that are nested deeper
/// are decoded as empty, which limits the use of the stack.
const MAX_DEPTH: usize = 64;

/// Finds the structure of the type `T` for the reflection service. Decodes sample values of the
/// type, and records which types the decoding requests. Returns `None` if the type rejects a sample
/// value, or if the requested types depend on the values.
pub(crate) fn schema<T: DeserializeOwned>() -> Option<Schema> {
    catch_unwind(AssertUnwindSafe(trace::<T>)).ok().flatten()
}

/// Finds the structure of the type `T`. Decodes sample values, and records which types the decoding
/// requests. Ends when every variant of every enum was decoded, or after [`MAX_PASSES`] values.
/// Returns `None` if the type rejects a sample value.
fn trace<T: DeserializeOwned>() -> Option<Schema> {
    let mut builder = SchemaBuilder::default();
    let mut format = Format::Unknown;
    for _ in 0..MAX_PASSES {
        let value = SampleValue {
            builder: &mut builder,
            format: &mut format,
        };
        // A bulk can be decoded only in a scope.
        let (decoded, _) = bulk::decode_in_scope(|| T::deserialize(value));
        decoded.ok()?;
        if builder.is_complete() {
            break;
        }
    }
    Some(Schema {
        format,
        types: builder.types,
    })
}

#[derive(Default)]
/// Structs and enums that were found so far within a type by decoding sample values of the type.
/// Also contains the stack of the types that are being decoded.
struct SchemaBuilder {
    types: BTreeMap<String, TypeFormat>,
    /// Names of the types that are being decoded, outermost first.
    stack: Vec<&'static str>,
    /// Number of enum values so far whose variants had all been used before. Determines the variant
    /// of the next such value: another variant may contain an enum with unused variants.
    turn: usize,
}

impl SchemaBuilder {
    /// Returns whether a type is being decoded within itself, or types are nested more than
    /// [`MAX_DEPTH`] deep. Sequences and options must then be decoded as empty. Otherwise, the
    /// decoding would never end or use too much of the stack.
    fn is_recursive(&self) -> bool {
        let is_repeated = |(at, name): (usize, &&str)| self.stack[..at].contains(name);
        self.stack.len() > MAX_DEPTH || self.stack.iter().enumerate().any(is_repeated)
    }

    /// Returns whether the structure of the type is completely known: every variant of every enum
    /// in the type was decoded from a sample value. No further sample value is then needed.
    fn is_complete(&self) -> bool {
        self.types.values().all(|format| match format {
            TypeFormat::Struct(_) => true,
            TypeFormat::Enum(variants) => variants.iter().all(|(_, fields)| fields.is_some()),
        })
    }

    /// Decodes the fields of a struct or variant with `decode`. Adds `name`, the name of the type,
    /// to the list of the types that are being decoded, so that a type within itself is detected.
    /// Removes the name afterwards.
    fn within<T>(
        &mut self,
        name: &'static str,
        decode: impl FnOnce(&mut Self) -> Result<(T, Fields), Error>,
    ) -> Result<(T, Fields), Error> {
        if self.stack.len() > 2 * MAX_DEPTH {
            return Err(Error::custom("the type contains itself without an end"));
        }
        self.stack.push(name);
        let decoded = decode(self);
        self.stack.pop();
        decoded
    }

    /// Records a struct with its fields. If the struct is already recorded, fills in those types of
    /// its fields that are still unknown. Fails if the fields differ from the recorded fields.
    fn add_struct(&mut self, name: &str, fields: Fields) -> Result<(), Error> {
        let is_same = match self.types.get_mut(name) {
            None => {
                let format = TypeFormat::Struct(fields);
                self.types.insert(name.to_owned(), format);
                true
            }
            Some(TypeFormat::Struct(known)) => known.merge(fields),
            Some(TypeFormat::Enum(_)) => false,
        };
        is_same.then_some(()).ok_or_else(same_name)
    }
}

/// Returns the error for two different types that have the same name. A [`Schema`] identifies types
/// by their names, and therefore cannot describe two types with one name.
fn same_name() -> Error {
    Error::custom("two different types have the same name")
}

/// Serde deserializer that supplies an invented sample value of the type that is requested, and
/// records this type. Used to find the structure of types.
struct SampleValue<'t> {
    builder: &'t mut SchemaBuilder,
    /// Format of the value, which the deserializer records here.
    format: &'t mut Format,
}

impl SampleValue<'_> {
    /// Records `format` as the type of the value that is being decoded. If a type is already
    /// recorded for this value, only fills in the unknown parts of that type. Fails if the two
    /// types differ.
    fn set(&mut self, format: Format) -> Result<(), Error> {
        match self.format.merge(format) {
            true => Ok(()),
            false => Err(Error::custom(
                "the formats of a value contradict each other",
            )),
        }
    }
}

/// Implements the deserializer's functions for primitive types. Each line names the function, the
/// recorded format, the visitor's function, and the constant sample value.
macro_rules! primitives {
    ($($function:ident $format:ident $visit:ident $value:expr;)*) => {
        $(
            fn $function<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
                self.set(Format::$format)?;
                visitor.$visit($value)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for SampleValue<'_> {
    type Error = Error;

    primitives! {
        deserialize_bool Bool visit_bool true;
        deserialize_i8 I8 visit_i8 1;
        deserialize_i16 I16 visit_i16 1;
        deserialize_i32 I32 visit_i32 1;
        deserialize_i64 I64 visit_i64 1;
        deserialize_i128 I128 visit_i128 1;
        deserialize_u8 U8 visit_u8 1;
        deserialize_u16 U16 visit_u16 1;
        deserialize_u32 U32 visit_u32 1;
        deserialize_u64 U64 visit_u64 1;
        deserialize_u128 U128 visit_u128 1;
        deserialize_f32 F32 visit_f32 1.0;
        deserialize_f64 F64 visit_f64 1.0;
        deserialize_char Char visit_char 'a';
        deserialize_str Str visit_str "";
        deserialize_string Str visit_string String::new();
        deserialize_bytes Bytes visit_bytes &[];
        deserialize_byte_buf Bytes visit_byte_buf Vec::new();
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom(
            "the decoding of the type depends on the input",
        ))
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.set(Format::Unit)?;
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        if self.builder.is_recursive() {
            self.set(Format::Option(Box::default()))?;
            return visitor.visit_none();
        }
        let mut inner = Format::Unknown;
        let value = visitor.visit_some(SampleValue {
            builder: self.builder,
            format: &mut inner,
        })?;
        self.set(Format::Option(Box::new(inner)))?;
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let mut inner = Format::Unknown;
        let len = usize::from(!self.builder.is_recursive());
        let items = std::slice::from_mut(&mut inner);
        let value = visitor.visit_seq(SampleItems::new(self.builder, &mut items[..len]))?;
        self.set(Format::Seq(Box::new(inner)))?;
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let mut inner = [Format::Unknown, Format::Unknown];
        let len = 2 * usize::from(!self.builder.is_recursive());
        let value = visitor.visit_map(SampleItems::new(self.builder, &mut inner[..len]))?;
        let [key, item] = inner;
        self.set(Format::Map(Box::new(key), Box::new(item)))?;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        mut self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut inner = vec![Format::Unknown; len];
        let value = visitor.visit_seq(SampleItems::new(self.builder, &mut inner))?;
        self.set(Format::Tuple(inner))?;
        Ok(value)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.set(Format::Named(name.to_owned()))?;
        self.builder.add_struct(name, Fields::Unit)?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.set(Format::Named(name.to_owned()))?;
        let (value, fields) = self.builder.within(name, |builder| {
            let mut format = Format::Unknown;
            let inner = SampleValue {
                builder,
                format: &mut format,
            };
            let value = visitor.visit_newtype_struct(inner)?;
            Ok((value, Fields::Newtype(format)))
        })?;
        self.builder.add_struct(name, fields)?;
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.set(Format::Named(name.to_owned()))?;
        let decode = |builder: &mut SchemaBuilder| tuple(builder, len, visitor);
        let (value, fields) = self.builder.within(name, decode)?;
        self.builder.add_struct(name, fields)?;
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.set(Format::Named(name.to_owned()))?;
        let decode = |builder: &mut SchemaBuilder| named(builder, fields, visitor);
        let (value, fields) = self.builder.within(name, decode)?;
        self.builder.add_struct(name, fields)?;
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.set(Format::Named(name.to_owned()))?;
        let none_seen = || {
            let variants = variants.iter().map(|name| ((*name).to_owned(), None));
            TypeFormat::Enum(variants.collect())
        };
        let types = &mut self.builder.types;
        let known = types.entry(name.to_owned()).or_insert_with(none_seen);
        let TypeFormat::Enum(known) = known else {
            return Err(same_name());
        };
        let is_repeated = self.builder.stack.contains(&name);
        let unseen = known.iter().position(|(_, fields)| fields.is_none());
        let index = match unseen {
            // A nested occurrence uses the first variant, which often ends the recursion.
            _ if is_repeated => 0,
            Some(unseen) => unseen,
            None => {
                self.builder.turn += 1;
                self.builder.turn % known.len().max(1)
            }
        };
        let (value, fields) = self.builder.within(name, |builder| {
            let mut fields = Fields::Unit;
            let variant = SampleVariant {
                index: u32::try_from(index).unwrap_or_default(),
                builder,
                fields: &mut fields,
            };
            let value = visitor.visit_enum(variant)?;
            Ok((value, fields))
        })?;
        let known = match self.builder.types.get_mut(name) {
            Some(TypeFormat::Enum(known)) => known.get_mut(index),
            _ => None,
        };
        let is_same = match known {
            Some((_, Some(known))) => known.merge(fields),
            Some((_, unseen)) => {
                *unseen = Some(fields);
                true
            }
            None => false,
        };
        is_same.then_some(()).ok_or_else(same_name)?;
        Ok(value)
    }

    serde::forward_to_deserialize_any! { identifier ignored_any }
}

/// Decodes a tuple struct or tuple variant with `len` fields from invented values, to find the
/// types of its fields. Returns the decoded value and these types.
fn tuple<'de, V: Visitor<'de>>(
    builder: &mut SchemaBuilder,
    len: usize,
    visitor: V,
) -> Result<(V::Value, Fields), Error> {
    let mut inner = vec![Format::Unknown; len];
    let value = visitor.visit_seq(SampleItems::new(builder, &mut inner))?;
    Ok((value, Fields::Tuple(inner)))
}

/// Finds the types of the fields of a struct or struct variant. For this purpose, lets `visitor`
/// decode arbitrary sample values, and records the type that it requests for each field. Returns
/// the decoded value, and the names and types of the fields.
fn named<'de, V: Visitor<'de>>(
    builder: &mut SchemaBuilder,
    names: &'static [&'static str],
    visitor: V,
) -> Result<(V::Value, Fields), Error> {
    let mut inner = vec![Format::Unknown; names.len()];
    let value = visitor.visit_seq(SampleItems::new(builder, &mut inner))?;
    let names = names.iter().map(|name| (*name).to_owned());
    Ok((value, Fields::Named(names.zip(inner).collect())))
}

/// Deserializer that supplies arbitrary sample values as the elements of a sequence, map, tuple or
/// struct. Supplies one element for each entry in `formats`, and records its type in this entry.
struct SampleItems<'t> {
    builder: &'t mut SchemaBuilder,
    formats: std::slice::IterMut<'t, Format>,
}

impl<'t> SampleItems<'t> {
    fn new(builder: &'t mut SchemaBuilder, formats: &'t mut [Format]) -> Self {
        Self {
            builder,
            formats: formats.iter_mut(),
        }
    }

    /// Decodes an invented sample value as the next element of a sequence, map, tuple or struct.
    /// `seed` determines the type of the element. Returns `None` after the last element.
    fn next<'de, S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(format) = self.formats.next() else {
            return Ok(None);
        };
        let value = SampleValue {
            builder: self.builder,
            format,
        };
        seed.deserialize(value).map(Some)
    }
}

impl<'de> SeqAccess<'de> for SampleItems<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next(seed)
    }
}

impl<'de> MapAccess<'de> for SampleItems<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.next(seed)?;
        value.ok_or_else(|| Error::custom("the map has a value without a key"))
    }
}

/// Deserializer that supplies an arbitrary sample value of one variant of an enum, and records the
/// types of the variant's fields for the reflection service. `index` is the number of the variant.
struct SampleVariant<'t> {
    index: u32,
    builder: &'t mut SchemaBuilder,
    /// Fields of the variant, which the deserializer records here.
    fields: &'t mut Fields,
}

impl<'de> EnumAccess<'de> for SampleVariant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let index: U32Deserializer<Error> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for SampleVariant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        *self.fields = Fields::Unit;
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        let mut format = Format::Unknown;
        let value = seed.deserialize(SampleValue {
            builder: self.builder,
            format: &mut format,
        })?;
        *self.fields = Fields::Newtype(format);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let (value, fields) = tuple(self.builder, len, visitor)?;
        *self.fields = fields;
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (value, fields) = named(self.builder, fields, visitor)?;
        *self.fields = fields;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    enum Tree {
        Leaf,
        Node(Box<Tree>, Vec<Tree>),
        Named {
            name: String,
            inner: Option<Box<Tree>>,
        },
        Marked(Mark),
    }

    #[derive(Debug, Serialize, Deserialize)]
    enum Mark {
        One(u8),
        Two,
    }

    #[test]
    fn types_that_contain_themselves_are_described_completely() {
        let schema = schema::<Vec<Tree>>().unwrap();
        let tree = || Format::Named("Tree".to_owned());
        assert_eq!(schema.format, Format::Seq(Box::new(tree())));
        let TypeFormat::Enum(variants) = &schema.types["Tree"] else {
            panic!("{schema:?}");
        };
        let fields: Vec<_> = variants
            .iter()
            .map(|(_, fields)| fields.clone().unwrap())
            .collect();
        let expected = [
            Fields::Unit,
            Fields::Tuple(vec![tree(), Format::Seq(Box::default())]),
            Fields::Named(vec![
                ("name".to_owned(), Format::Str),
                ("inner".to_owned(), Format::Option(Box::new(tree()))),
            ]),
            Fields::Newtype(Format::Named("Mark".to_owned())),
        ];
        for (field, expected) in fields.iter().zip(&expected) {
            let mut merged = expected.clone();
            assert!(merged.merge(field.clone()), "{field:?} and {expected:?}");
        }
        let TypeFormat::Enum(marks) = &schema.types["Mark"] else {
            panic!("{schema:?}");
        };
        assert!(
            marks.iter().all(|(_, fields)| fields.is_some()),
            "{marks:?}"
        );
    }

    #[test]
    fn types_whose_decoding_depends_on_the_input_have_no_schema() {
        #[derive(Debug, Serialize, Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u8),
            Text(String),
        }
        assert!(schema::<Either>().is_none());
        assert!(schema::<std::collections::HashMap<u8, Option<(i8, f64)>>>().is_some());
    }
}
