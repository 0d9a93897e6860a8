//! All comparisons of the judge, with their goals.

mod asynchronous;
mod calls;
mod core;
mod guest;
mod hosts;
mod softroce;

use super::row::{Row, Term};
use super::run::Run;
use super::source::Source;
use crate::plan::Layer;
use crate::test::Metric::Latency;
use crate::test::Verb::Send;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Message size in bytes of the bandwidth tests over UDP and between two simulated hosts: so large
/// that each message has many packets.
const LARGE: usize = 64 * KIB;

const fn ours(run: Run) -> Term {
    Term::of(Source::Ours(Layer::Core, run))
}

const fn perftest(run: Run) -> Term {
    Term::of(Source::Perftest(run))
}

const fn raw(args: &'static [&'static str]) -> Term {
    Term::of(Source::Yardstick(args))
}

/// The arguments of `rdma-bench` for 64 outstanding operations (option `-t`), in tests of
/// rdma-async and rdma-rpc.
const DEPTH_64: &[&str] = &["-t", "64"];

/// The arguments of `rdma-bench` for 64 outstanding operations whose tasks poll without sleeping,
/// as tests of rdma-core do by default.
const BUSY_DEPTH_64: &[&str] = &["-t", "64", "--completion", "busy"];

/// Returns a term (a number to be measured): the round trip time of an 8-byte message, sent by
/// rdma-core, rdma-async or rdma-rpc (`layer`). `rdma-bench`, run with the further arguments
/// `args`, reports half of this time. The term doubles the reported time.
const fn round_trip(layer: Layer, args: &'static [&'static str]) -> Term {
    let run = Run::new(Send, Latency, 8).with(args);
    Term::times(2.0, Source::Ours(layer, run))
}

/// Returns the comparisons that are measured on this machine rather than in the virtual machine.
/// The comparisons need processors that are not emulated.
pub(super) fn host_rows() -> impl Iterator<Item = &'static Row> {
    let all = [
        softroce::ROWS,
        core::ROWS,
        asynchronous::ROWS,
        calls::ROWS,
        hosts::ROWS,
    ];
    all.into_iter().flatten()
}

/// Returns the comparisons that are measured in the virtual machine, which has the kernel's
/// Soft-RoCE device.
pub(super) fn guest_rows() -> impl Iterator<Item = &'static Row> {
    guest::ROWS.iter()
}

#[cfg(test)]
mod tests {
    use super::super::goal::Bound::AtLeast;
    use super::super::goal::Goal;
    use super::super::row::Quantity;
    use super::*;

    fn rows() -> impl Iterator<Item = &'static Row> {
        host_rows().chain(guest_rows())
    }

    fn terms(row: &Row) -> impl Iterator<Item = &Term> {
        std::iter::once(&row.figure).chain(row.yardstick)
    }

    #[test]
    fn every_goal_has_rows() {
        let of_letter = |letter, last| (1..=last).map(move |number| format!("{letter}{number}"));
        let names = of_letter('G', 19).chain(of_letter('C', 3));
        let names = names.chain(of_letter('E', 15)).chain(of_letter('F', 8));
        let names = names.chain(of_letter('S', 1)).chain(of_letter('J', 2));
        for name in names.chain(["J4", "J5"].map(String::from)) {
            assert!(rows().any(|row| row.matches_name(&name)), "{name}");
        }
    }

    #[test]
    fn every_row_has_a_name_of_its_own_that_selects_no_other() {
        for row in rows() {
            let number = row.id.strip_prefix(|c: char| c.is_ascii_uppercase());
            let number = number.unwrap_or_default();
            let suffix = number.trim_start_matches(|c: char| c.is_ascii_digit());
            let is_suffix = suffix.chars().all(|c| c.is_ascii_lowercase());
            assert!(number.len() > suffix.len() && is_suffix, "{}", row.id);
            let called: Vec<_> = rows().filter(|other| other.matches_name(row.id)).collect();
            assert_eq!(called, [row]);
        }
    }

    #[test]
    fn a_row_compares_numbers_of_one_unit() {
        for row in rows() {
            let quantity = row.unit.quantity();
            for term in terms(row) {
                assert_eq!(term.quantity(), quantity, "{}", row.id);
                assert!(term.source.has(term.statistic), "{}: {term}", row.id);
            }
            let has_least = matches!(row.goal.bound(), AtLeast(_));
            match quantity {
                Quantity::Rate => assert!(has_least, "{}", row.id),
                Quantity::Time => assert!(!has_least, "{}", row.id),
                Quantity::Count => {}
            }
            let alone = matches!(row.goal, Goal::Value(_));
            assert_eq!(row.yardstick.is_empty(), alone, "{}", row.id);
            if matches!(row.goal, Goal::Difference(_)) {
                assert_eq!(quantity, Quantity::Time, "{}", row.id);
            }
        }
    }

    #[test]
    fn calls_are_of_rdma_rpc() {
        for term in rows().flat_map(terms) {
            match term.source {
                Source::Ours(layer, run) => {
                    assert_eq!(run.is_call(), layer == Layer::Rpc, "{term}");
                }
                Source::Perftest(run) => assert!(!run.is_call(), "{term}"),
                _ => {}
            }
        }
    }
}
