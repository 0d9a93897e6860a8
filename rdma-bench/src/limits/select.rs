//! Selects comparisons (rows) by their names, and by the machine that measures them.

use std::fmt;

use super::row::Row;
use super::rows::{guest_rows, host_rows};

/// The machine on which a comparison is measured: the host, or the virtual machine with the
/// kernel's Soft-RoCE device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKind {
    /// The machine on which the judge was started.
    Host,
    /// The virtual machine, which has the kernel's Soft-RoCE device.
    Guest,
}

impl MachineKind {
    /// Both machines: the host and the virtual machine.
    pub const ALL: [Self; 2] = [Self::Host, Self::Guest];

    /// Returns the comparisons that are measured on this kind of machine. Each comparison has a
    /// value under test, usually a reference value, and a goal.
    pub fn rows(self) -> Vec<&'static Row> {
        match self {
            Self::Host => host_rows().collect(),
            Self::Guest => guest_rows().collect(),
        }
    }
}

impl fmt::Display for MachineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Guest => "guest",
        })
    }
}

/// The error for a name that selects no comparison (row).
#[derive(Debug, thiserror::Error)]
#[error(
    "no row is called {name:?}; the rows are {}; G8 is short for G8a, G8b and so on, and G for every row of the letter",
    ids()
)]
pub struct UnknownRow {
    /// The name that selects no comparison.
    pub name: String,
}

/// Returns the comparisons that `name` selects (all for `None`), each with the machine that
/// measures it.
///
/// # Errors
///
/// [`UnknownRow`] if `name` selects no comparison.
pub fn select(name: Option<&str>) -> Result<Vec<(MachineKind, &'static Row)>, UnknownRow> {
    let is_selected = |row: &Row| name.is_none_or(|name| row.matches_name(name));
    let found: Vec<_> = all().filter(|(_, row)| is_selected(row)).collect();
    match name {
        Some(name) if found.is_empty() => Err(UnknownRow { name: name.into() }),
        _ => Ok(found),
    }
}

/// Returns a text with one line for each comparison: its name, its machine, its description and its
/// goal.
pub fn listing(rows: &[(MachineKind, &Row)]) -> String {
    let line = |(machine, row): &(MachineKind, &Row)| {
        let (id, what) = (row.id, row.what);
        format!(
            "{id:<6}{:<7}{what}: {}\n",
            machine.to_string(),
            row.goal_text()
        )
    };
    rows.iter().map(line).collect()
}

fn all() -> impl Iterator<Item = (MachineKind, &'static Row)> {
    MachineKind::ALL
        .into_iter()
        .flat_map(|machine| machine.rows().into_iter().map(move |row| (machine, row)))
}

fn ids() -> String {
    let ids: Vec<_> = all().map(|(_, row)| row.id).collect();
    ids.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str) -> usize {
        select(Some(name)).map_or(0, |rows| rows.len())
    }

    #[test]
    fn names_select_rows_of_both_machines() {
        assert_eq!((count("G1"), count("G8"), count("g8c")), (1, 4, 1));
        assert_eq!((count("G12"), count("G11"), count("g11d")), (6, 6, 1));
        let letters = ["g", "c", "s", "e", "f", "j"].map(count);
        assert_eq!(letters.iter().sum::<usize>(), select(None).unwrap().len());
        let machines: Vec<_> = select(Some("G11"))
            .unwrap()
            .iter()
            .map(|(p, _)| *p)
            .collect();
        assert_eq!(machines, [MachineKind::Guest; 6]);
    }

    #[test]
    fn a_name_without_rows_is_answered_with_the_valid_names() {
        for name in ["X9", "G99", "8", ""] {
            let error = select(Some(name)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("G1, G2a"), "{error}");
            assert!(error.contains("G11f"), "{error}");
        }
    }

    #[test]
    fn lists_have_name_machine_and_subject() {
        let mut rows = select(Some("G3")).unwrap();
        rows.extend(select(Some("G11d")).unwrap());
        assert_eq!(
            listing(&rows),
            "\
G3    host   write_lat 8 B, device memory / UCX put_lat: ratio at most 2.00
G11d  guest  ib_send_lat 8 B / the same on rxe: ratio at most 0.50
"
        );
    }
}
