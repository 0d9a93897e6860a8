//! Selection of devices by their names.

use std::str::FromStr;

use crate::error::{Error, Result};

/// A selection of devices by name, each with an optional port. The environment variable
/// `RDMA_DEVICE` contains such a selection as text.
///
/// The text is a comma-separated list of `name` or `name:port`. A name matches every device whose
/// name begins with it. With a leading `=`, names must match exactly. With a leading `^`, all
/// devices except the listed ones match.
///
/// | text | devices |
/// |---|---|
/// | `mlx5` | `mlx5_0`, `mlx5_1`, ... |
/// | `=mlx5_1:2` | `mlx5_1`, port 2 |
/// | `^rxe,siw` | all devices whose names begin with neither `rxe` nor `siw` |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSelector {
    text: String,
    exclude: bool,
    exact: bool,
    names: Vec<(String, Option<u8>)>,
}

impl DeviceSelector {
    /// The name of the environment variable that selects the device if the program selects no
    /// device.
    pub const VARIABLE: &'static str = "RDMA_DEVICE";

    /// Returns the selector in the environment variable `RDMA_DEVICE`, or `None` if the variable is
    /// not set or is empty.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the text is not a valid selector.
    pub fn from_environment() -> Result<Option<Self>> {
        match std::env::var(Self::VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse().map(Some),
            _ => Ok(None),
        }
    }

    /// Returns `None` if the selector does not match the device named `device`. Returns
    /// `Some(Some(port))` if the selector matches and contains a port for this device, and
    /// `Some(None)` if the selector matches without a port.
    pub fn matches(&self, device: &str) -> Option<Option<u8>> {
        let named = self.names.iter().find(|(name, _)| {
            if self.exact {
                device == name
            } else {
                device.starts_with(name.as_str())
            }
        });
        match (named, self.exclude) {
            (Some((_, port)), false) => Some(*port),
            (None, true) => Some(None),
            _ => None,
        }
    }

    /// Returns the text from which the selector was created.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for DeviceSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let error = |reason: &str| Error::invalid("device selector", format!("{text:?}: {reason}"));
        let mut rest = text.trim();
        let (mut exclude, mut exact) = (false, false);
        while let Some((mark, tail)) = rest
            .chars()
            .next()
            .filter(|mark| "^=".contains(*mark))
            .map(|mark| (mark, &rest[1..]))
        {
            let flag = if mark == '^' {
                &mut exclude
            } else {
                &mut exact
            };
            if std::mem::replace(flag, true) {
                return Err(error("a mark is given twice"));
            }
            rest = tail;
        }
        let name = |item: &str| {
            let (name, port) = match item.split_once(':') {
                None => (item, None),
                Some((name, port)) => (
                    name,
                    Some(
                        port.parse()
                            .map_err(|_| error("a port is a number from 1 to 255"))?,
                    ),
                ),
            };
            match (name.is_empty(), port) {
                (true, _) => Err(error("a device's name is empty")),
                (_, Some(0)) => Err(error("ports begin with 1")),
                _ => Ok((name.to_owned(), port)),
            }
        };
        let names = rest
            .split(',')
            .map(|item| name(item.trim()))
            .collect::<Result<_>>()?;
        Ok(Self {
            text: text.to_owned(),
            exclude,
            exact,
            names,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, device: &str) -> Option<Option<u8>> {
        selector.parse::<DeviceSelector>().unwrap().matches(device)
    }

    #[test]
    fn prefixes_exact_names_and_exclusions() {
        assert_eq!(matches("mlx5", "mlx5_10"), Some(None));
        assert_eq!(matches("=mlx5_1", "mlx5_10"), None);
        assert_eq!(matches("=mlx5_1:2", "mlx5_1"), Some(Some(2)));
        assert_eq!(matches("rxe_0, mlx5:1", "mlx5_3"), Some(Some(1)));
        assert_eq!(matches("^rxe,siw", "mlx5_0"), Some(None));
        assert_eq!(matches("^rxe,siw", "siw0"), None);
        assert_eq!(matches("^=rxe_0", "rxe_01"), Some(None));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "", ",", "a,,b", "a:", "a:0", "a:256", "a:x", "==a", "^^a", ":1",
        ] {
            assert!(text.parse::<DeviceSelector>().is_err(), "{text:?}");
        }
    }
}
