//! The language of faults: `WHEN=WHAT`, separated by `&`. This module parses it, and says what is wrong
//! with a text.

use outrigger_device::{Code, Error, Result};

use crate::Entry;

/// The faults that a driver is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// The seed of all that happens by chance.
    pub seed: u64,
    /// Requests of more bytes are out of memory.
    pub above: Option<u64>,
    /// Requests beyond so many bytes in use are out of memory.
    pub total: Option<u64>,
    /// The faults of single calls.
    pub rules: Vec<Rule>,
}

/// A rule that gives some calls a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `None` for any entry.
    pub entry: Option<Entry>,
    /// The calls of the entry that get the fault.
    pub when: When,
    /// The fault.
    pub what: What,
}

/// The calls of a rule, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At the n-th.
    At(u64),
    /// At the n-th and all after it.
    From(u64),
    /// At so many of a hundred, by chance.
    Percent(u8),
}

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The call fails and does nothing. It says nothing of work.
    Call(Code),
    /// The call succeeds and its work fails.
    Work(Code),
    /// The work takes so many milliseconds longer.
    Delay(u64),
    /// The copy moves the first half of its bytes and ends with this code.
    Torn(Code),
    /// From here on the device is lost.
    Lost,
}

impl FaultSpec {
    /// Parses a specification.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the term that makes no sense, and what would.
    pub fn parse(text: &str) -> Result<Self> {
        let mut spec = Self::default();
        for term in text.split('&').filter(|term| !term.is_empty()) {
            spec.add(term).map_err(|problem| {
                Error::new(
                    Code::INVALID_ARGUMENT,
                    format!(
                        "the fault `{term}`: {problem}; faults are seed=N, above=BYTES, total=BYTES, \
                         and ENTRY@N=WHAT, ENTRY@N..=WHAT or ENTRY%PERCENT=WHAT, where WHAT is call:CODE, work:CODE, \
                         delay:MILLISECONDS, torn:CODE or lost, and a CODE as OUT_OF_MEMORY; separated by &"
                    ),
                )
            })?;
        }
        Ok(spec)
    }

    fn add(&mut self, term: &str) -> Result<(), String> {
        let (when, what) = term
            .rsplit_once('=')
            .ok_or_else(|| "it has no `=`".to_owned())?;
        match when {
            "seed" => self.seed = number(what)?,
            "above" => self.above = Some(bytes(what)?),
            "total" => self.total = Some(bytes(what)?),
            _ => self.rules.push(Rule::parse(when, what)?),
        }
        Ok(())
    }
}

impl Rule {
    fn parse(when: &str, what: &str) -> Result<Self, String> {
        let (name, when) = if let Some((name, count)) = when.split_once('@') {
            match count.strip_suffix("..") {
                Some(count) => (name, When::From(number(count)?)),
                None => (name, When::At(number(count)?)),
            }
        } else if let Some((name, percent)) = when.split_once('%') {
            let percent = number(percent)?;
            let percent = u8::try_from(percent).ok().filter(|p| *p <= 100);
            (
                name,
                When::Percent(percent.ok_or("more than 100 of a hundred")?),
            )
        } else {
            return Err(format!("`{when}` is neither an option nor a call"));
        };
        let entry = match name {
            "any" => None,
            _ => Some(Entry::from_name(name).ok_or(format!("`{name}` is no entry"))?),
        };
        let rule = Self {
            entry,
            when,
            what: What::parse(what)?,
        };
        rule.check().map(|()| rule)
    }

    fn check(&self) -> Result<(), String> {
        let submits = self.entry.is_none_or(Entry::submits);
        match self.what {
            What::Work(_) | What::Delay(_) if !submits => {
                Err("only an entry that submits work has work that can fail or be late".to_owned())
            }
            What::Torn(_) if self.entry != Some(Entry::copy) => {
                Err("only a copy can be torn".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl What {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "lost" => Ok(Self::Lost),
            None => Err(format!("`{text}` fails neither the call nor its work")),
            Some(("call", name)) => failure(name).map(Self::Call),
            Some(("work", name)) => failure(name).map(Self::Work),
            Some(("delay", time)) => number(time).map(Self::Delay),
            Some(("torn", "OK")) => Ok(Self::Torn(Code::OK)),
            Some(("torn", name)) => failure(name).map(Self::Torn),
            Some((word, _)) => Err(format!("`{word}` is not a known fault")),
        }
    }
}

fn failure(name: &str) -> Result<Code, String> {
    Code::from_name(name)
        .filter(|code| !matches!(*code, Code::OK | Code::NOT_READY))
        .ok_or_else(|| format!("`{name}` is no failure"))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

/// A number of bytes, with K, M or G.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number(digits)?
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too many bytes"))
}

#[cfg(test)]
mod tests {
    use super::{FaultSpec, Rule, What, When};
    use crate::Entry;
    use outrigger_device::Code;

    #[test]
    fn all_forms_are_understood() {
        let spec = FaultSpec::parse(
            "seed=7&above=2M&total=1G&copy@3=torn:OK&kernel_launch%10=work:EXECUTION&any@9..=lost",
        )
        .unwrap();
        assert_eq!((spec.seed, spec.above), (7, Some(2 << 20)));
        assert_eq!(spec.total, Some(1 << 30));
        let rule = |entry, when, what| Rule { entry, when, what };
        assert_eq!(
            spec.rules,
            [
                rule(Some(Entry::copy), When::At(3), What::Torn(Code::OK)),
                rule(
                    Some(Entry::kernel_launch),
                    When::Percent(10),
                    What::Work(Code::EXECUTION)
                ),
                rule(None, When::From(9), What::Lost),
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what) in [
            ("copy", "no `=`"),
            ("copy=EXECUTION", "neither an option nor a call"),
            ("cpoy@1=call:EXECUTION", "`cpoy` is no entry"),
            ("copy@x=call:EXECUTION", "`x` is no number"),
            ("copy%101=call:EXECUTION", "more than 100"),
            ("copy@1=call:OK", "`OK` is no failure"),
            ("copy@1=EXECUTION", "neither the call nor its work"),
            (
                "queue_query@1=work:EXECUTION",
                "only an entry that submits work",
            ),
            ("memory_alloc@1=delay:5", "only an entry that submits work"),
            ("fill@1=torn:EXECUTION", "only a copy"),
            ("above=99999999999G", "too many bytes"),
        ] {
            let error = FaultSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
