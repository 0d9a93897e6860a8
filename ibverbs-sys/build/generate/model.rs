//! A model of the generated Rust bindings, with the information from which the C shim is generated.

use std::collections::BTreeMap;

use super::policy::PTHREAD;
use syn::{Expr, ForeignItem, Item, ItemConst, ReturnType, Type};

/// A function of the C libraries, with its prototype.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) args: Vec<(String, Type)>,
    pub(super) result: Option<Type>,
    pub(super) variadic: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Struct,
    Union,
}

/// A struct or a union of the bindings, with its layout on x86-64.
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) fields: Vec<(String, Type)>,
    pub(super) size: usize,
    align: usize,
    /// The offset of each field in bytes, including the fields that have no name in C.
    pub(super) offsets: BTreeMap<String, usize>,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) functions: Vec<Function>,
    pub(super) records: BTreeMap<String, Record>,
    /// The integer type in each enumeration, by the name of the enumeration. The size of the type
    /// is always four bytes.
    pub(super) enums: BTreeMap<String, Type>,
    pub(super) types: BTreeMap<String, Type>,
    /// Names and values of enumerators and integer macros, in the order of the headers.
    pub(super) constants: Vec<(String, String)>,
}

impl Model {
    /// Parses the text that [`bind::bindings`](super::bind::bindings) returned.
    pub(super) fn read(rust: &str) -> Result<Self, String> {
        let file = syn::parse_file(rust).map_err(|error| error.to_string())?;
        let mut model = Self::default();
        for item in &file.items {
            model.declare(item);
        }
        model.measure(rust)?;
        model.place_unnamed();
        Ok(model)
    }

    fn declare(&mut self, item: &Item) {
        match item {
            Item::Struct(item) => {
                let name = item.ident.to_string();
                if let syn::Fields::Unnamed(fields) = &item.fields {
                    self.enums.insert(name, fields.unnamed[0].ty.clone());
                } else {
                    self.record(name, Kind::Struct, &item.fields);
                }
            }
            Item::Union(item) => {
                let fields = syn::Fields::Named(item.fields.clone());
                self.record(item.ident.to_string(), Kind::Union, &fields);
            }
            Item::Type(item) => {
                self.types
                    .insert(item.ident.to_string(), (*item.ty).clone());
            }
            Item::Const(item) => self.constant(item),
            Item::Impl(item) if item.trait_.is_none() => {
                for item in &item.items {
                    if let syn::ImplItem::Const(item) = item {
                        self.enumerator(item);
                    }
                }
            }
            Item::ForeignMod(item) => {
                let functions = item.items.iter().filter_map(|item| match item {
                    ForeignItem::Fn(function) => Some(Function::read(&function.sig)),
                    _ => None,
                });
                self.functions.extend(functions);
            }
            _ => {}
        }
    }

    fn record(&mut self, name: String, kind: Kind, fields: &syn::Fields) {
        let fields = fields
            .iter()
            .filter_map(|field| Some((field.ident.as_ref()?.to_string(), field.ty.clone())));
        let record = Record {
            kind,
            fields: fields.collect(),
            size: 0,
            align: 0,
            offsets: BTreeMap::default(),
        };
        self.records.insert(name, record);
    }

    /// Adds the constant `pub const NAME: T = 7;`, which stands for a macro or an enumerator of an
    /// anonymous enumeration.
    fn constant(&mut self, item: &ItemConst) {
        if let Some(value) = integer(&item.expr) {
            self.constants.push((item.ident.to_string(), value));
        }
    }

    /// Adds the constant `pub const NAME: T = T(7);`, which stands for an enumerator.
    fn enumerator(&mut self, item: &syn::ImplItemConst) {
        if let Expr::Call(call) = &item.expr
            && let Some(value) = call.args.first().and_then(integer)
        {
            self.constants.push((item.ident.to_string(), value));
        }
    }

    /// Sets the sizes, alignments and offsets of all records from bindgen's layout tests, which are
    /// lines such as
    /// `["Size of T"][::core::mem::size_of::<T>() - 8usize];`
    /// `["Offset of field: T::f"][::core::mem::offset_of!(T, f) - 4usize];`
    fn measure(&mut self, rust: &str) -> Result<(), String> {
        // rustfmt may break a statement in two.
        for statement in rust.split(';').map(str::trim) {
            let Some((test, value)) = statement.rsplit_once(" - ") else {
                continue;
            };
            let Some(value) = value.strip_suffix("usize]") else {
                continue;
            };
            let value: usize = value
                .parse()
                .map_err(|_| format!("not a layout test: {statement}"))?;
            let subject = |of: &str| test.split_once(of)?.1.split_once('"').map(|(name, _)| name);
            if let Some(name) = subject("[\"Size of ") {
                if let Some(record) = self.records.get_mut(name) {
                    record.size = value;
                }
            } else if let Some(name) = subject("[\"Alignment of ") {
                if let Some(record) = self.records.get_mut(name) {
                    record.align = value;
                }
            } else if let Some(path) = subject("[\"Offset of field: ") {
                let (name, field) = path.split_once("::").ok_or("not a field")?;
                if let Some(record) = self.records.get_mut(name) {
                    record.offsets.insert(field.to_owned(), value);
                }
            }
        }
        Ok(())
    }
}

impl Model {
    /// Sets the offsets of the fields that have no name in C. The layout tests do not mention these
    /// fields. Each of them follows the previous field of its record.
    fn place_unnamed(&mut self) {
        let mut found = Vec::new();
        for (name, record) in &self.records {
            let mut end: usize = 0;
            for (field, ty) in &record.fields {
                let offset = match (record.offsets.get(field), self.record_of(ty)) {
                    (None, Some(unnamed)) if record.kind == Kind::Struct => {
                        end.next_multiple_of(unnamed.align.max(1))
                    }
                    (known, _) => known.copied().unwrap_or(0),
                };
                if is_unnamed(field) {
                    found.push((name.clone(), field.clone(), offset));
                }
                end = offset + self.size(ty).unwrap_or(0);
            }
        }
        for (name, field, offset) in found {
            if let Some(record) = self.records.get_mut(&name) {
                record.offsets.insert(field, offset);
            }
        }
    }

    /// Returns the struct or union that the type `ty` names.
    pub(super) fn record_of(&self, ty: &Type) -> Option<&Record> {
        self.records.get(&last(ty)?)
    }

    /// Returns the types of libc in `record` whose sizes depend on the architecture, each with its
    /// offset.
    pub(super) fn pthread(&self, record: &Record) -> Vec<(usize, &'static str)> {
        let mut found = Vec::new();
        for (field, ty) in &record.fields {
            let offset = record.offsets.get(field).copied().unwrap_or(0);
            let name = last(ty).unwrap_or_default();
            found.extend(
                PTHREAD
                    .iter()
                    .filter(|(ty, _)| *ty == name)
                    .map(|(ty, _)| (offset, *ty)),
            );
            let inner = self.records.get(&name).map(|inner| self.pthread(inner));
            let inner = inner.unwrap_or_default().into_iter();
            found.extend(inner.map(|(within, ty)| (offset + within, ty)));
        }
        found
    }

    /// Returns the size of a type in bytes on x86-64; `None` for a type of libc.
    pub(super) fn size(&self, ty: &Type) -> Option<usize> {
        match ty {
            Type::Ptr(_) => return Some(8),
            Type::Array(array) => {
                let len: usize = integer(&array.len)?.parse().ok()?;
                return Some(self.size(&array.elem)? * len);
            }
            _ => {}
        }
        let name = last(ty)?;
        if let Some(record) = self.records.get(&name) {
            return (record.size > 0).then_some(record.size);
        }
        if let Some(ty) = self.types.get(&name).or(self.enums.get(&name)) {
            return self.size(ty);
        }
        match name.as_str() {
            "u8" | "i8" | "c_char" | "c_schar" | "c_uchar" => Some(1),
            "u16" | "i16" | "c_short" | "c_ushort" => Some(2),
            "u32" | "i32" | "c_int" | "c_uint" => Some(4),
            "u64" | "i64" | "usize" | "isize" => Some(8),
            "c_long" | "c_ulong" | "c_longlong" | "c_ulonglong" => Some(8),
            // An optional function pointer.
            "Option" => Some(8),
            _ => None,
        }
    }
}

/// Returns whether bindgen invented the name of this field, because the field has no name in C.
pub(super) fn is_unnamed(field: &str) -> bool {
    field.starts_with("__bindgen_anon_")
}

/// Returns whether bindgen invented the name of this type, because the type has no name in C.
pub(super) fn is_unnamed_type(name: &str) -> bool {
    name.contains("__bindgen_ty_")
}

impl Function {
    fn read(signature: &syn::Signature) -> Self {
        let args = signature.inputs.iter().filter_map(|arg| match arg {
            syn::FnArg::Typed(arg) => match &*arg.pat {
                syn::Pat::Ident(name) => Some((name.ident.to_string(), (*arg.ty).clone())),
                _ => None,
            },
            syn::FnArg::Receiver(_) => None,
        });
        let result = match &signature.output {
            ReturnType::Default => None,
            ReturnType::Type(_, ty) => Some((**ty).clone()),
        };
        Self {
            name: signature.ident.to_string(),
            args: args.collect(),
            result,
            variadic: signature.variadic.is_some(),
        }
    }
}

/// Returns the last segment of the path of a type: `c_int` for `::core::ffi::c_int`.
pub(super) fn last(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    path.path
        .segments
        .last()
        .map(|segment| segment.ident.to_string())
}

/// Returns an integer literal as text, with its sign.
pub(super) fn integer(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Int(value),
            ..
        }) => Some(value.base10_digits().to_owned()),
        Expr::Unary(syn::ExprUnary {
            op: syn::UnOp::Neg(_),
            expr,
            ..
        }) => integer(expr).map(|value| format!("-{value}")),
        _ => None,
    }
}
