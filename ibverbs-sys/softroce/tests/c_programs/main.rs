//! Well-known C programs from Debian's packages, unmodified, on the device: each as a server and a
//! client, with the library preloaded. If the test runs as root, each program also runs as a user
//! without privileges.
//!
//! Two programs are part of this project and are compiled here: one uses verbs that are newer than
//! those packages, the other opens libibverbs by its name.
//!
//! A program that is not installed is reported as ignored, with its package; `cargo xtask test`
//! installs all packages.

mod cases;
#[path = "../library/mod.rs"]
mod library;
mod run;

use std::process::ExitCode;

use cases::cases;
use libtest_mimic::{Arguments, Trial};
use run::User;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each case has two programs, and each of them needs a processor.
    arguments.test_threads = Some(1);
    let users: &[User] = match User::own() {
        User::Root => &[User::Root, User::Nobody],
        _ => &[User::Ordinary],
    };
    let trials = users.iter().flat_map(|&user| {
        let named = move |case| {
            let name = format!("{user}::{case}");
            Trial::ignorable_test(name, move || run::run(&case, user))
        };
        let own = Trial::test(format!("{user}::buffers"), move || run::buffers(user));
        let by_name = Trial::test(format!("{user}::by_name"), move || run::by_name(user));
        cases().into_iter().map(named).chain([own, by_name])
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    run::clean();
    conclusion.exit_code()
}
