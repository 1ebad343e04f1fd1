//! `dpuctl top`: shows what changed between two samples of the DPU's counters.

mod phases;
mod traffic;

use jiff::Timestamp;
use offload_proto::v1::{ListPhasesResponse, ListTrafficResponse};
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    arguments::{Format, Top},
    client::Client,
    console::Console,
    error::CallError,
    format::{json_line, yaml_document},
};

/// Rows on a screen, unless `--lines` is set.
const SCREENFUL: usize = 20;

/// Moves the cursor home and clears the screen, so that the next table replaces the last.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[J";

/// A sample of counters.
trait Look: Serialize + Sized {
    async fn take(client: &mut Client, what: &Top) -> Result<Self, CallError>;

    /// The difference from the sample `before`, in at most `lines` rows.
    fn table(&self, before: &Self, lines: usize, wide: bool) -> String;

    /// The text that replaces a table without rows. `None`: the table has rows.
    fn nothing(&self) -> Option<&'static str> {
        None
    }

    fn warning(&self) -> Option<String> {
        None
    }
}

/// Prints samples until an interrupt, or one table with `--once`.
pub(crate) async fn top(
    client: &mut Client,
    what: &Top,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    if what.phases {
        show::<ListPhasesResponse>(client, what, console).await
    } else {
        show::<ListTrafficResponse>(client, what, console).await
    }
}

async fn show<L: Look>(
    client: &mut Client,
    what: &Top,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match what.output {
        Format::Table => changes::<L>(client, what, false, console).await,
        Format::Wide => changes::<L>(client, what, true, console).await,
        Format::Json => counters::<L>(client, what, json_line, console).await,
        Format::Yaml => counters::<L>(client, what, yaml_document, console).await,
    }
}

/// Prints tables of differences for people.
async fn changes<L: Look>(
    client: &mut Client,
    what: &Top,
    wide: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let mut before = L::take(client, what).await?;
    loop {
        sleep(what.interval()).await;
        let now = L::take(client, what).await?;
        let most = if console.is_screen { SCREENFUL } else { usize::MAX };
        let lines = what.lines.map_or(most, |lines| lines.try_into().unwrap_or(usize::MAX));
        let table = now.table(&before, lines, wide);
        match (console.is_screen && !what.once, now.nothing()) {
            (true, _) => {
                let warning = now.warning().map(|line| line + "\n").unwrap_or_default();
                console.print(&format!("{CLEAR_SCREEN}{warning}{table}"))?;
            }
            (false, Some(nothing)) => console.note(nothing)?,
            (false, None) => {
                now.warning().map_or(Ok(()), |line| console.note(&line))?;
                console.print(&table)?;
            }
        }
        if what.once {
            return Ok(());
        }
        before = now;
    }
}

/// Prints the counters of each sample for programs.
async fn counters<L: Look>(
    client: &mut Client,
    what: &Top,
    encoded: impl Fn(&L) -> Result<String, CallError>,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    loop {
        console.line(&encoded(&L::take(client, what).await?)?)?;
        if what.once {
            return Ok(());
        }
        sleep(what.interval()).await;
    }
}

/// Seconds between two samples, by the DPU's clock. `None`: the clock was set in between.
fn seconds_between(before: &str, now: &str) -> Option<f64> {
    let (before, now) = (before.parse::<Timestamp>().ok()?, now.parse::<Timestamp>().ok()?);
    Some(now.duration_since(before).as_secs_f64()).filter(|seconds| *seconds > 0.0)
}
