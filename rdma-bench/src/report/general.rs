//! Formats numbers as `%g` of C's `printf` does.

use std::fmt;

/// A number that is displayed as C's `printf` displays it for `%g`: with six significant digits and
/// without trailing zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct General(pub(crate) f64);

impl fmt::Display for General {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scientific = format!("{:.5e}", self.0);
        let Some((digits, exponent)) = scientific.split_once('e') else {
            // Infinite, or not a number.
            return f.write_str(&scientific);
        };
        let exponent: i32 = exponent.parse().map_err(|_| fmt::Error)?;
        if (-4..6).contains(&exponent) {
            let places = usize::try_from(5 - exponent).unwrap_or(0);
            return f.write_str(trimmed(&format!("{:.places$}", self.0)));
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(f, "{}e{sign}{:02}", trimmed(digits), exponent.abs())
    }
}

fn trimmed(number: &str) -> &str {
    if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::General;

    #[test]
    fn numbers_are_written_as_c_does() {
        let written = [
            (1435.0598, "1435.06"),
            (68.9999999, "69"),
            (0.000123456, "0.000123456"),
            (0.0000123456, "1.23456e-05"),
            (1234567.0, "1.23457e+06"),
            (999999.5, "1e+06"),
            (0.0, "0"),
            (30.1253, "30.1253"),
        ];
        for (number, text) in written {
            assert_eq!(General(number).to_string(), text);
        }
    }
}
