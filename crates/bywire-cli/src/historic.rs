//! `bywire historic`: the machines of the source documents, as models.

use std::fmt::Write as _;

use anyhow::Result;
use bywire_history::machines;
use bywire_report::model_rows;
use serde_json::json;

/// Arguments of `bywire historic`.
#[derive(clap::Args, Debug)]
pub struct HistoricArgs {
    /// Print one JSON object, with what each model is made of, instead of a table
    #[arg(long)]
    json: bool,
}

impl HistoricArgs {
    /// Prints the predictions of each model beside the figures of its document.
    ///
    /// # Errors
    /// Those of printing.
    pub fn run(self) -> Result<()> {
        bywire_command::output::print(&if self.json { object()? } else { table() })
    }
}

fn object() -> Result<String> {
    let machines: Vec<_> = machines()
        .iter()
        .map(|machine| {
            let stages = machine.pipeline.stages.iter().map(|stage| {
                json!({
                    "name": stage.name,
                    "message_ns": stage.message_seconds * 1e9,
                    "packet_ns": stage.packet_seconds * 1e9,
                    "bytes_per_second": stage.bytes_per_second,
                    "shared_bytes_per_second": stage.shared_bytes_per_second,
                })
            });
            let checks = machine.checks.iter().map(|check| {
                json!({
                    "row": check.figure.row,
                    "what": check.figure.what,
                    "size_bytes": check.figure.size_bytes,
                    "printed": check.figure.normalised.value,
                    "modelled": check.modelled,
                    "unit": check.figure.normalised.unit,
                    "kind": check.kind.name(),
                    "error": check.error(),
                })
            });
            json!({
                "document": machine.document,
                "name": machine.name,
                "latency_ns": machine.pipeline.latency_seconds * 1e9,
                "packet_bytes": machine.pipeline.packet_bytes,
                "stages": stages.collect::<Vec<_>>(),
                "checks": checks.collect::<Vec<_>>(),
            })
        })
        .collect();
    Ok(serde_json::to_string(&json!({ "schema": "bywire-historic/1", "machines": machines }))? + "\n")
}

fn table() -> String {
    let rows = model_rows();
    let mut text = String::new();
    let mut machine = "";
    for row in &rows {
        if row.machine != machine {
            machine = row.machine;
            let _ = writeln!(text, "{machine}");
        }
        let (kind, error) = (row.kind.name(), &row.error);
        let _ = writeln!(
            text,
            "  {:<22} {:>22}  model {:>16}  {kind:<9} {error:>8}  {}",
            row.figure, row.printed, row.modelled, row.from
        );
    }
    text.push_str(
        "Nothing here is measured: each model is made of its document's printed figures. What was fitted is met by \
         construction; what was predicted tells how good the model is. The report of a session draws the graphs.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_contain_every_check() {
        let checks: usize = machines().iter().map(|machine| machine.checks.len()).sum();
        let lines = table().lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(lines, checks);
        let object: serde_json::Value = serde_json::from_str(&object().unwrap()).unwrap();
        let told = object["machines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|machine| machine["checks"].as_array().unwrap().len());
        assert_eq!(told.sum::<usize>(), checks);
    }
}
