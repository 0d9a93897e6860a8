//! Device attributes that only sysfs files provide.

use std::fs;
use std::path::Path;

/// Returns the text of the file `file` in `directory`, the sysfs directory of a device, without the
/// final line break. Returns `None` if the file does not exist or is empty.
pub(super) fn text(directory: &Path, file: &str) -> Option<String> {
    if directory.as_os_str().is_empty() {
        return None;
    }
    let text = fs::read(directory.join(file)).ok()?;
    let text = String::from_utf8_lossy(&text);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the name of the link speed in the text `rate`, or `None` if the text contains no such
/// name. The kernel describes the rate of a port by such a text: the name in `800 Gb/sec (4X XDR)`
/// is `XDR`.
pub(crate) fn speed_of_rate(rate: &str) -> Option<&str> {
    let (_, inside) = rate.split_once('(')?;
    let (_, name) = inside.strip_suffix(')')?.split_once(' ')?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_speed_is_found() {
        assert_eq!(speed_of_rate("800 Gb/sec (4X XDR)"), Some("XDR"));
        assert_eq!(speed_of_rate("2.5 Gb/sec (1X SDR)"), Some("SDR"));
        assert_eq!(speed_of_rate("10 Gb/sec (4X)"), None);
        assert_eq!(speed_of_rate(""), None);
    }

    #[test]
    fn a_missing_file_is_none() {
        assert_eq!(text(Path::new(""), "proc"), None);
        assert_eq!(text(Path::new("/proc/self"), "no such file"), None);
        assert!(text(Path::new("/proc/self"), "comm").is_some());
    }
}
