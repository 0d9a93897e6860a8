//! [`Schema`]: the structure of a type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Structure of a type, as its `Deserialize` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Schema {
    /// Format of the type.
    pub format: Format,
    /// Structs and enums within the type, by name.
    pub types: BTreeMap<String, TypeFormat>,
}

/// Format of a value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants have the names of Rust's types")]
pub enum Format {
    /// A format that no value was decoded of, for example within a type that contains itself.
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
    Option(Box<Format>),
    /// A sequence of any length.
    Seq(Box<Format>),
    /// Pairs of keys and values.
    Map(Box<Format>, Box<Format>),
    /// Values of a fixed number.
    Tuple(Vec<Format>),
    /// A struct or enum of this name.
    Named(String),
}

/// Format of a struct or enum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TypeFormat {
    /// A struct, or a struct-like thing.
    Struct(Fields),
    /// An enum: its variants, in their order. The fields of a variant are `None` if no value of it could be
    /// decoded.
    Enum(Vec<(String, Option<Fields>)>),
}

/// Fields of a struct or of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Fields {
    /// No fields.
    Unit,
    /// One field without a name.
    Newtype(Format),
    /// Fields without names.
    Tuple(Vec<Format>),
    /// Fields with names.
    Named(Vec<(String, Format)>),
}

impl Format {
    /// Adds what another value of the same type has shown. Returns `false` if the two disagree.
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

fn merge_all(this: &mut [Format], other: Vec<Format>) -> bool {
    let is_same_length = this.len() == other.len();
    let mut pairs = this.iter_mut().zip(other);
    is_same_length && pairs.all(|(this, other)| this.merge(other))
}

impl Fields {
    /// Adds what another value of the same type has shown. Returns `false` if the two disagree.
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
