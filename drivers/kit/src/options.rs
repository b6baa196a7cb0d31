//! The options of `open`. All of them are parsed before anything is opened, so that a typing error is reported
//! instead of giving devices that nobody asked for.

use crate::{Fault, Result};

/// `key=value,key=value`, of keys that the driver knows.
#[derive(Debug)]
pub struct Options<'a> {
    known: &'a [(&'a str, &'a str)],
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Options<'a> {
    /// Parses a text. `known` has every key with the form of its value, as messages show it: `("devices", "N")`.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT` for a key that is unknown, which the text names, or that has no value.
    pub fn parse(text: &'a str, known: &'a [(&'a str, &'a str)]) -> Result<Self> {
        let mut options = Self {
            known,
            pairs: Vec::new(),
        };
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(options.wrong(format!("the option `{pair}` has no value")));
            };
            if !known.iter().any(|(one, _)| *one == key) {
                return Err(options.wrong(format!("there is no option `{key}`")));
            }
            options.pairs.push((key, value));
        }
        Ok(options)
    }

    /// The value of a key, of which the last one counts.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let mut found = self.pairs.iter().rev();
        found.find(|(one, _)| *one == key).map(|(_, value)| *value)
    }

    /// A switch: 0 or 1.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT` for any other value.
    pub fn switch(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(value) => Err(self.wrong(format!("{key}={value}: expected 0 or 1"))),
        }
    }

    fn wrong(&self, what: String) -> Fault {
        let known: Vec<String> = (self.known.iter())
            .map(|(key, form)| format!("{key}={form}"))
            .collect();
        Fault::argument(format!("{what}; known are {}", known.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    const KNOWN: [(&str, &str); 2] = [("colour", "NAME"), ("fast", "0|1")];

    #[test]
    fn pairs_are_found() {
        let options = Options::parse("colour=red,,fast=1,colour=blue=green", &KNOWN).unwrap();
        assert_eq!(options.get("colour"), Some("blue=green"));
        assert_eq!(options.switch("fast").unwrap(), Some(true));
        let options = Options::parse("", &KNOWN).unwrap();
        assert_eq!(options.get("colour"), None);
        assert_eq!(options.switch("fast").unwrap(), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_known() {
        for (text, wrong) in [("size=1", "`size`"), ("fast", "`fast`")] {
            let fault = Options::parse(text, &KNOWN).unwrap_err();
            assert!(fault.text().contains(wrong), "{fault:?}");
            assert!(fault.text().contains("colour=NAME, fast=0|1"), "{fault:?}");
        }
        let fault = Options::parse("fast=2", &KNOWN).unwrap().switch("fast");
        assert!(fault.unwrap_err().text().contains("fast=2"));
    }
}
