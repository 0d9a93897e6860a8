//! The C programs that people know, from Debian's packages and unmodified, on the device: each as a
//! server and a client, with the library preloaded. As root, each is run once more as a user
//! without privileges.
//!
//! There is one of this project's own, for verbs that are newer than those packages; it is compiled here.
//!
//! A program that is not installed is reported as ignored, with its package; `cargo xtask test`
//! installs them all.

mod cases;
mod run;

use std::process::ExitCode;

use cases::cases;
use libtest_mimic::{Arguments, Trial};
use run::User;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each is two programs that want a processor of their own.
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
        cases().into_iter().map(named).chain([own])
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    run::clean();
    conclusion.exit_code()
}
