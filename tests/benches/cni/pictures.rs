//! Charts of some tables as SVG, drawn from their rows, with text as text. The background is white, which is readable
//! in light and dark themes.

use std::{io, path::Path};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::Value;

/// The tables of systems by number of callers, one for each set of address families.
pub(crate) const PEERS: [(&str, &str); 2] = [
    ("IPv4", "Beside the peers with host-local, IPv4, at random phases"),
    ("dual stack", "Beside the peers with host-local, dual stack, at random phases"),
];
/// The table of systems by leases held.
pub(crate) const LEASES: &str = "ADD and DEL by leases held, one caller, IPv4, at random phases";
/// The table of an ADD's phases.
pub(crate) const PHASES: &str = "Where an ADD's time goes, one caller, ours";

/// Columns that charts are drawn from.
pub(crate) const CALLERS: &str = "callers";
pub(crate) const HELD: &str = "leases held";
pub(crate) const WHAT: &str = "what";
pub(crate) const OF: &str = "of";
pub(crate) const P50: &str = "p50 ms";
pub(crate) const RATIO: &str = "times the floor, p50";
pub(crate) const PHASE: &str = "phase";
pub(crate) const BEGIN: &str = "begins after ms";

/// The name of this plugin's system, which is highlighted.
pub(crate) const OURS: &str = "ours";

const WIDTH: u32 = 900;
/// Height of a line of text with its bar.
const LINE: i32 = 24;
const MARGIN: i32 = 12;
/// Width of the labels of bars.
const LABELS: i32 = 490;
/// Width for values to the right of bars and lines.
const VALUES: i32 = 210;
const TEXT: i32 = 14;

/// Colours of lines, dark enough for text.
const COLOURS: [RGBColor; 6] = [
    RGBColor(110, 110, 110),
    RGBColor(0, 70, 200),
    RGBColor(190, 60, 0),
    RGBColor(0, 0, 0),
    RGBColor(0, 130, 110),
    RGBColor(140, 20, 140),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the charts whose tables are among the rows into the folder. Others are left as they are.
pub(crate) fn draw(folder: &Path, rows: &[Value]) {
    let of = |table: &str| rows.iter().filter(|row| row["table"] == table).collect::<Vec<_>>();
    let peers: Vec<_> = PEERS
        .iter()
        .flat_map(|(families, table)| of(table).into_iter().map(|row| (*families, row)))
        .collect();
    let ratios: Vec<_> = peers.iter().filter_map(|(families, row)| ratio(families, row)).collect();
    let title = "One caller's ADD and DEL as multiples of the floor, median (logarithmic)";
    draw_bars(&folder.join("ratios.svg"), title, &ratios);
    let mut phases: Vec<_> = of(PHASES).into_iter().filter_map(phase).collect();
    phases.sort_by(|one, other| one.from.total_cmp(&other.from));
    let title = "What an ADD does when, one caller: median in ms after the plugin's call";
    draw_bars(&folder.join("add.svg"), title, &phases);
    draw_lines(&folder.join("leases.svg"), &curves(&of(LEASES)));
}

struct Bar {
    label: String,
    /// In the unit that all bars of the chart have.
    from: f64,
    to: f64,
    value: String,
    stands_out: bool,
}

/// The bar of a system with one caller, as a multiple of the floor.
fn ratio(families: &str, row: &Value) -> Option<Bar> {
    let (of, ratio) = (text(row, OF), row[RATIO].as_f64()?);
    (row[CALLERS] == 1).then(|| Bar {
        label: format!("{}, {families}: {of}", text(row, WHAT)),
        from: 0.0,
        to: ratio.ln(),
        value: format!("{ratio:.2}"),
        stands_out: of == OURS,
    })
}

/// The bar of a phase whose beginning is known.
fn phase(row: &Value) -> Option<Bar> {
    let (from, took) = (row[BEGIN].as_f64()?, row[P50].as_f64()?);
    let label = text(row, PHASE).to_owned();
    let stands_out = label.starts_with("the kernel");
    Some(Bar { label, from, to: from + took, value: format!("{took:.2}"), stands_out })
}

fn text<'a>(row: &'a Value, column: &str) -> &'a str {
    row[column].as_str().unwrap()
}

fn draw_bars(path: &Path, title: &str, bars: &[Bar]) {
    if bars.is_empty() {
        return;
    }
    let all = || bars.iter().flat_map(|bar| [bar.from, bar.to]);
    let (least, most) = (all().fold(0.0, f64::min), all().fold(0.0, f64::max));
    let room = f64::from(WIDTH) - f64::from(LABELS + VALUES / 3);
    let place = |value: f64| LABELS + whole((value - least) / (most - least) * room);
    picture(path, LINE * (2 + i32::try_from(bars.len()).unwrap()), |area| {
        write(area, title, (MARGIN, LINE / 2), HPos::Left)?;
        for (bar, top) in bars.iter().zip((1..).map(|line| LINE * line + MARGIN)) {
            let middle = top + LINE / 2;
            let colour = if bar.stands_out { BLUE } else { RGBColor(150, 150, 150) };
            // At least wide enough to be visible.
            let (from, to) = (place(bar.from.min(bar.to)), place(bar.from.max(bar.to)) + 1);
            let corners = [(from, top + 4), (to, top + LINE - 4)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
            write(area, &bar.label, (LABELS - MARGIN, middle), HPos::Right)?;
            write(area, &bar.value, (to + MARGIN / 2, middle), HPos::Left)?;
        }
        Ok(())
    });
}

/// Durations of a system's operation by number of leases.
struct Curve {
    label: String,
    points: Vec<(f64, f64)>,
}

fn curves(rows: &[&Value]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows {
        let label = format!("{}, {}", text(row, WHAT), text(row, OF));
        let point = (row[HELD].as_f64().unwrap(), row[P50].as_f64().unwrap());
        match curves.iter_mut().find(|curve| curve.label == label) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { label, points: vec![point] }),
        }
    }
    curves
}

fn draw_lines(path: &Path, curves: &[Curve]) {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let Some(last) = all().map(|point| point.0).reduce(f64::max) else { return };
    let (least, most) =
        all().fold((f64::MAX, 0.0_f64), |(least, most), it| (least.min(it.1), most.max(it.1)));
    picture(path, 480, |area| {
        let title = "What one caller's ADD and DEL take by leases held, median";
        write(area, title, (MARGIN, LINE / 2), HPos::Left)?;
        let mut chart = ChartBuilder::on(area)
            .margin_top(LINE + MARGIN)
            .margin_right(VALUES)
            .x_label_area_size(2 * LINE)
            .y_label_area_size(3 * LINE)
            .build_cartesian_2d(0.0..last, (least / 1.2..most * 1.2).log_scale())?;
        let style = ("sans-serif", TEXT);
        let mut mesh = chart.configure_mesh();
        mesh.label_style(style).axis_desc_style(style).disable_x_mesh();
        mesh.x_label_formatter(&|held| format!("{held:.0}"));
        mesh.y_label_formatter(&|ms| format!("{ms:.0}"));
        mesh.x_desc(HELD).y_desc("ms (logarithmic)").light_line_style(WHITE).draw()?;
        let mut ends = Vec::new();
        for (number, curve) in curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points = || curve.points.iter().copied();
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
            chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
            let end = curve.points[curve.points.len() - 1];
            ends.push((chart.backend_coord(&end), format!("{} {:.1}", curve.label, end.1), colour));
        }
        ends.sort_by_key(|((_, y), ..)| *y);
        let mut free = 0;
        for ((x, y), label, colour) in ends {
            let at = (x + MARGIN, y.max(free));
            area.draw(&Text::new(label, at, text_style(HPos::Left).color(&colour)))?;
            free = at.1 + TEXT + 2;
        }
        Ok(())
    });
}

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// Draws the content on white.
fn picture(path: &Path, height: i32, content: impl FnOnce(&Area<'_>) -> Drawn) {
    let area = SVGBackend::new(path, (WIDTH, height.unsigned_abs())).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| content(&area)).and_then(|()| area.present());
    drawn.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Writes a line of text next to the point.
fn write(area: &Area<'_>, text: &str, at: (i32, i32), side: HPos) -> Drawn {
    area.draw(&Text::new(text, at, text_style(side)))
}

fn text_style(side: HPos) -> TextStyle<'static> {
    ("sans-serif", TEXT).into_text_style(&(WIDTH, WIDTH)).pos(Pos::new(side, VPos::Center))
}

#[expect(clippy::cast_possible_truncation, reason = "a place in a picture")]
fn whole(place: f64) -> i32 {
    place.round() as i32
}
