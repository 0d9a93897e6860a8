//! [`Schema`]: the structure of a type, by which tools convert its values.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum nesting depth of a decoded type description, such as a list of lists. Limited because
/// the description comes from the peer and each level needs stack memory. Deeper than the types of
/// real programs.
const MAX_DEPTH: u32 = 128;

/// Structure of a type in the signature of a method, for tools that inspect a server. Describes the
/// values that the type's `Deserialize` implementation expects, in the terms of the serde data
/// model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Schema {
    /// Format of the type.
    pub format: Format,
    /// Structs and enums that the format refers to, by name.
    pub types: BTreeMap<String, TypeFormat>,
}

/// Description of the type of a value, such as a field or an argument, in terms of the [serde data
/// model](https://serde.rs/data-model.html).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants have the names of Rust's types")]
pub enum Format {
    /// An unknown format: no sample value with this format was decoded, for example because the
    /// type contains itself.
    #[default]
    Unknown,
    Unit,
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    U128,
    F32,
    F64,
    Char,
    Str,
    Bytes,
    Option(#[serde(deserialize_with = "inner")] Box<Format>),
    /// A sequence of any length.
    Seq(#[serde(deserialize_with = "inner")] Box<Format>),
    /// A map from keys to values.
    Map(
        #[serde(deserialize_with = "inner")] Box<Format>,
        #[serde(deserialize_with = "inner")] Box<Format>,
    ),
    /// A fixed number of values.
    Tuple(#[serde(deserialize_with = "inner")] Vec<Format>),
    /// A struct or enum with this name, see [`Schema::types`].
    Named(String),
}

/// Description of a struct or enum: its fields or variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TypeFormat {
    /// A struct with these fields.
    Struct(Fields),
    /// An enum with these variants in order. The fields of a variant are `None` if no sample value
    /// of the variant was decoded.
    Enum(Vec<(String, Option<Fields>)>),
}

/// Fields of a struct or of an enum variant, with the type of each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Fields {
    /// No fields.
    Unit,
    /// A single field without a name.
    Newtype(Format),
    /// Fields without names, in order.
    Tuple(Vec<Format>),
    /// Fields with names, in order.
    Named(Vec<(String, Format)>),
}

/// Decodes the inner part of a type description, such as the element type of a list. Fails if the
/// parts are nested deeper than [`MAX_DEPTH`].
fn inner<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }

    /// Guard for decoding a part of a type description, such as the element type of a list. Stores
    /// the nesting depth outside of this part, and restores that depth when dropped.
    struct RestoreDepth(u32);

    impl Drop for RestoreDepth {
        fn drop(&mut self) {
            DEPTH.set(self.0);
        }
    }

    let outer = RestoreDepth(DEPTH.get());
    if outer.0 == MAX_DEPTH {
        return Err(D::Error::custom("a format is nested too deeply"));
    }
    DEPTH.set(outer.0 + 1);
    T::deserialize(from)
}

impl Format {
    /// Replaces unknown parts of this type description by the corresponding parts of `other`, a
    /// description from another value of the same type. Returns `false` if the descriptions
    /// contradict each other.
    pub(super) fn merge(&mut self, other: Self) -> bool {
        match (self, other) {
            (_, Self::Unknown) => true,
            (this @ Self::Unknown, other) => {
                *this = other;
                true
            }
            (Self::Option(this), Self::Option(other)) | (Self::Seq(this), Self::Seq(other)) => {
                this.merge(*other)
            }
            (Self::Map(key, value), Self::Map(other_key, other_value)) => {
                key.merge(*other_key) && value.merge(*other_value)
            }
            (Self::Tuple(this), Self::Tuple(other)) => merge_all(this, other),
            (this, other) => *this == other,
        }
    }
}

/// Merges each type in `other` into the type at the same position in `this`: fills in the parts
/// that are unknown in `this`. Returns `false` if two types differ or the lists have different
/// lengths.
fn merge_all(this: &mut [Format], other: Vec<Format>) -> bool {
    let is_same_length = this.len() == other.len();
    let mut pairs = this.iter_mut().zip(other);
    is_same_length && pairs.all(|(this, other)| this.merge(other))
}

impl Fields {
    /// Replaces the unknown types of these fields by the types in `other`, the fields of another
    /// value of the same struct or variant. Returns `false` if the names or numbers of the fields
    /// differ, or if a type that is known in both differs.
    pub(super) fn merge(&mut self, other: Self) -> bool {
        match (self, other) {
            (Self::Unit, Self::Unit) => true,
            (Self::Newtype(this), Self::Newtype(other)) => this.merge(other),
            (Self::Tuple(this), Self::Tuple(other)) => merge_all(this, other),
            (Self::Named(this), Self::Named(other)) => {
                let is_same_length = this.len() == other.len();
                let mut pairs = this.iter_mut().zip(other);
                is_same_length
                    && pairs.all(|(this, other)| this.0 == other.0 && this.1.merge(other.1))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_that_are_nested_too_deeply_are_refused() {
        let one = postcard::to_allocvec(&Format::Option(Box::new(Format::Unit)));
        let [option, unit] = one.unwrap()[..] else {
            panic!("two variants");
        };
        for (depth, is_decoded) in [(1, true), (128, true), (129, false), (1 << 20, false)] {
            let mut bytes = vec![option; depth];
            bytes.push(unit);
            let decoded = postcard::from_bytes::<Format>(&bytes);
            assert_eq!(decoded.is_ok(), is_decoded, "{depth}");
        }
    }
}
