//! Selects the tests of a run.

use globset::{Glob, GlobMatcher};
use serde::{Deserialize, Serialize};

use crate::{Test, Tier, rules, test};

/// The tests that are wanted. Without anything said: all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Tiers; none means all.
    pub tiers: Vec<Tier>,
    /// Patterns; none means all. See [`Pattern`].
    pub filters: Vec<String>,
    /// Rules of which a test has to name one; none means all.
    pub rules: Vec<String>,
}

/// A pattern is not one.
#[derive(Debug, thiserror::Error)]
#[error("`{pattern}`: {reason}")]
pub struct BadPattern {
    pattern: String,
    reason: String,
}

impl Selection {
    /// The tests that it names, in the order in which they run.
    ///
    /// # Errors
    /// If a filter is no pattern or matches no test of the suite, or no header states a rule.
    pub fn tests(&self) -> Result<Vec<&'static Test>, BadPattern> {
        let all = test::all();
        let filters = self
            .filters
            .iter()
            .map(|text| {
                let pattern = Pattern::new(text)?;
                match all.iter().any(|test| pattern.matches(test.id)) {
                    true => Ok(pattern),
                    false => Err(BadPattern {
                        pattern: text.clone(),
                        reason: "no test of the suite is named so (--list shows all)".to_owned(),
                    }),
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(rule) = self.rules.iter().find(|rule| rules::find(rule).is_none()) {
            return Err(BadPattern {
                pattern: rule.clone(),
                reason: "no header states such a rule".to_owned(),
            });
        }
        let of_rules = |test: &Test| {
            self.rules.is_empty() || test.rules.iter().any(|r| self.rules.iter().any(|w| w == r))
        };
        let wanted = |test: &&Test| {
            (self.tiers.is_empty() || self.tiers.contains(&test.tier()))
                && of_rules(test)
                && (filters.is_empty() || filters.iter().any(|filter| filter.matches(test.id)))
        };
        Ok(all.into_iter().filter(wanted).collect())
    }

    /// Whether it leaves nothing out.
    pub fn is_everything(&self) -> bool {
        self.filters.is_empty()
            && self.rules.is_empty()
            && (self.tiers.is_empty() || Tier::ALL.iter().all(|tier| self.tiers.contains(tier)))
    }
}

/// Ids by one text: an id, its beginning up to a dot (`stream.order`), or a glob (`*.copy_*`).
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    glob: Option<GlobMatcher>,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// If it is a broken glob.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        let glob = if text.contains(['*', '?', '[', '{']) {
            let glob = Glob::new(text).map_err(|error| BadPattern {
                pattern: text.to_owned(),
                reason: error.kind().to_string(),
            })?;
            Some(glob.compile_matcher())
        } else {
            None
        };
        Ok(Self {
            text: text.to_owned(),
            glob,
        })
    }

    /// Whether it names this id.
    pub fn matches(&self, id: &str) -> bool {
        match &self.glob {
            Some(glob) => glob.is_match(id),
            None => id
                .strip_prefix(self.text.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_an_id_a_beginning_or_a_glob() {
        let matches = |pattern: &str, id: &str| Pattern::new(pattern).unwrap().matches(id);
        assert!(matches("stream.order.copy", "stream.order.copy"));
        assert!(!matches(
            "stream.order.copy",
            "stream.order.copy_after_fill"
        ));
        assert!(matches("stream.order", "stream.order.copy_after_fill"));
        assert!(matches("stream", "stream.order.copy_after_fill"));
        assert!(!matches("stream.ord", "stream.order.copy_after_fill"));
        assert!(matches("*.copy_*", "stream.order.copy_after_fill"));
        assert!(Pattern::new("a[").is_err());
    }

    #[test]
    fn a_filter_that_matches_nothing_is_an_error() {
        let selection = Selection {
            filters: vec!["stream.nosuch".to_owned()],
            ..Selection::default()
        };
        assert!(selection.tests().is_err());
        let selection = Selection {
            rules: vec!["R999".to_owned()],
            ..Selection::default()
        };
        assert!(selection.tests().is_err());
        assert!(!Selection::default().tests().unwrap().is_empty());
    }
}
