//! Comparison of a crate's imports with its layers.

use crate::source::Source;

/// Returns a message for each import that is not from a lower layer, and for each difference
/// between the layers and the existing modules.
pub(crate) fn broken(layers: &[&str], source: &Source) -> Vec<String> {
    let height = |name: &str| layers.iter().position(|&layer| layer == name);
    let mut broken = Vec::new();
    for module in &source.modules {
        match layers.iter().filter(|&layer| layer == module).count() {
            0 => broken.push(format!(
                "the module {module} is missing in the list of layers"
            )),
            1 => {}
            count => broken.push(format!(
                "the module {module} is {count} times in the list of layers"
            )),
        }
    }
    for layer in layers {
        if !source.modules.iter().any(|module| module == layer) {
            broken.push(format!(
                "the list of layers has {layer}, and there is no such module"
            ));
        }
    }
    for import in &source.imports {
        let place = format!("{}:{}", import.file.display(), import.line);
        let (from, name) = (&import.module, &import.name);
        let to = match source.modules.contains(name) {
            true => name,
            false => match source.reexports.get(name) {
                Some(module) => module,
                None => {
                    broken.push(format!(
                        "{place}: {from} imports {name}, which is in no module of the crate"
                    ));
                    continue;
                }
            },
        };
        if to != from
            && let (Some(upper), Some(lower)) = (height(from), height(to))
            && upper < lower
        {
            broken.push(format!(
                "{place}: {from} imports from {to}, which is above it"
            ));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Import;

    fn source(modules: &[&str], imports: &[(&str, &str)]) -> Source {
        let import = |&(module, name): &(&str, &str)| Import {
            file: format!("{module}.rs").into(),
            line: 7,
            module: module.to_owned(),
            name: name.to_owned(),
        };
        Source {
            modules: modules.iter().map(|&name| name.to_owned()).collect(),
            reexports: [("function".to_owned(), "high".to_owned())].into(),
            imports: imports.iter().map(import).collect(),
            ..Source::default()
        }
    }

    #[test]
    fn an_import_from_a_higher_module_is_named_with_its_place() {
        let imports = [
            ("high", "low"),
            ("low", "low"),
            ("high", "function"),
            ("low", "high"),
        ];
        let broken = broken(&["low", "high"], &source(&["high", "low"], &imports));
        assert_eq!(
            broken,
            ["low.rs:7: low imports from high, which is above it"]
        );
    }

    #[test]
    fn a_name_that_the_root_re_exports_is_that_of_its_module() {
        let found = broken(
            &["low", "high"],
            &source(&["high", "low"], &[("low", "function")]),
        );
        assert_eq!(
            found,
            ["low.rs:7: low imports from high, which is above it"]
        );
        let found = broken(
            &["low", "high"],
            &source(&["high", "low"], &[("high", "nothing")]),
        );
        assert_eq!(
            found,
            ["high.rs:7: high imports nothing, which is in no module of the crate"]
        );
    }

    #[test]
    fn the_list_has_each_module_once_and_no_other() {
        let found = broken(&["low", "gone", "low"], &source(&["low", "new"], &[]));
        assert_eq!(
            found,
            [
                "the module low is 2 times in the list of layers",
                "the module new is missing in the list of layers",
                "the list of layers has gone, and there is no such module",
            ]
        );
    }
}
