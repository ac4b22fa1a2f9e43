//! Times against sizes as an SVG, with logarithmic axes: growth by gpu-vmm and by copying.

use super::report::Report;
use super::text::figure;
use crate::CliResult;
use crate::output::about;
use gpu_vmm::Bytes;
use gpu_vmm_bench::{Curve, Unit};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// The size of the picture in pixels.
const SIZE: (u32, u32) = (960, 420);
const FONT: &str = "sans-serif";
const OURS: RGBColor = RGBColor(0x1b, 0x7f, 0x4b);
const OTHERS: RGBColor = RGBColor(0xc2, 0x41, 0x0c);

/// Draws one chart for each measured way to grow.
pub(super) fn svg(report: &Report) -> CliResult<String> {
    let curves: Vec<&Curve> = report.pairs.iter().flat_map(|pair| &pair.curves).collect();
    let mut ways: Vec<&str> = curves.iter().map(|curve| &*curve.what).collect();
    ways.dedup();
    if ways.is_empty() {
        return Err("there is no growth to draw: it was not measured".into());
    }
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, way) in area.split_evenly((1, ways.len())).iter().zip(ways) {
        let curves: Vec<&Curve> = curves.iter().filter(|curve| curve.what == way).copied().collect();
        chart(part, way, &curves)?;
    }
    area.present()?;
    drop(area);
    Ok(svg)
}

fn chart<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    way: &str,
    curves: &[&Curve],
) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let sizes = span(points().map(|(size, _)| *size as f64));
    let times = span(points().map(|(_, time)| *time));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("growth {way}"), (FONT, 16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(sizes.log_scale().base(2.0), times.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|size| about(Bytes(*size as u64)))
        .y_label_formatter(&|time| figure(*time, Unit::Nanoseconds))
        .x_desc("size reached")
        .y_desc("time since the beginning")
        .draw()?;
    for (curve, colour) in curves.iter().zip([OURS, OTHERS]) {
        let line = curve.points.iter().map(|(size, time)| (*size as f64, *time));
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?
            .label(&*curve.who)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(line.map(|point| Circle::new(point, 2, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Returns the range of the numbers above zero, with some margin.
fn span(numbers: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = numbers
        .filter(|number| *number > 0.0)
        .fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), number| (least.min(number), most.max(number)));
    least.min(most) * 0.8..most * 1.25
}
