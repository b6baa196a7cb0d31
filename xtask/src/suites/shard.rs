//! The distribution of a test run's jobs over parts that run on several machines.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::jobs::Job;

/// One part of a run that is shared out, such as 2/4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shard {
    /// From 1 on.
    pub(super) number: usize,
    pub(super) of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(number, of)| {
            let (number, of) = (number.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&number).then_some(Self { number, of })
        });
        parsed.ok_or_else(|| "a part is K/N, such as 2/4".to_owned())
    }
}

impl Shard {
    /// The jobs of this part: each job belongs to exactly one, and all parts take about as long.
    pub(super) fn part<'a>(self, jobs: &[&'a Job]) -> Vec<&'a Job> {
        let mut loads = vec![0; self.of];
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(jobs[index].seconds));
        let mut mine = BTreeSet::new();
        for index in order {
            let lightest = (0..self.of).min_by_key(|&part| loads[part]).unwrap_or(0);
            loads[lightest] += jobs[index].seconds;
            if lightest + 1 == self.number {
                mine.insert(index);
            }
        }
        mine.into_iter().map(|index| jobs[index]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::jobs::of;
    use crate::suites::seed::Seed;

    fn names(jobs: &[&Job]) -> Vec<&'static str> {
        jobs.iter().map(|job| job.name).collect()
    }

    #[test]
    fn the_parts_of_a_run_are_all_of_it() {
        let jobs = of(&[], true, Seed(0));
        for count in 1..=jobs.len() + 2 {
            let parts = (1..=count).map(|number| Shard { number, of: count }.part(&jobs));
            let mut dealt: Vec<&str> = parts.flat_map(|part| names(&part)).collect();
            let mut wanted = names(&jobs);
            dealt.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(dealt, wanted, "{count} parts");
        }
    }

    #[test]
    fn the_parts_of_a_run_are_about_equal() {
        let jobs = of(&[], true, Seed(0));
        let seconds = |jobs: &[&Job]| jobs.iter().map(|job| job.seconds).sum::<u32>();
        for number in 1..=3 {
            let part = seconds(&Shard { number, of: 3 }.part(&jobs));
            assert!(part * 3 < seconds(&jobs) * 5 / 4, "{number}/3: {part} s");
        }
    }

    #[test]
    fn a_part_is_written_as_a_fraction() {
        assert_eq!("2/4".parse(), Ok(Shard { number: 2, of: 4 }));
        for wrong in ["", "2", "0/4", "5/4", "a/b", "-1/2"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
