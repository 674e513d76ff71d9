package report

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/holdfast-go/holdfast/bench"
)

var (
	oursColor  = color.RGBA{R: 200, A: 255}
	limitColor = color.RGBA{R: 120, G: 120, B: 120, A: 255}
	peerColor  = color.RGBA{R: 30, G: 90, B: 170, A: 255}
)

func colorOf(role bench.Role) color.Color {
	return map[bench.Role]color.Color{bench.Ours: oursColor, bench.Limit: limitColor, bench.Peer: peerColor}[role]
}

// Charts writes an SVG for each workload into dir and returns their names.
func (r *Run) Charts(dir string) (map[string]string, error) {
	names := map[string]string{}
	for _, s := range sections {
		p, height, err := r.chart(s)
		if err != nil {
			return nil, fmt.Errorf("chart of %s: %w", s.workload.Name, err)
		}
		if p == nil {
			continue
		}
		name := strings.ToLower(s.workload.Name) + ".svg"
		names[s.workload.Name] = name
		to, err := p.WriterTo(20*vg.Centimeter, height, "svg")
		if err != nil {
			return nil, err
		}
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if _, err := to.WriteTo(f); err != nil {
			f.Close()
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// chart draws a workload: lines over its parameter if that has more than two
// values, or else a row for each implementation at one value. nil if nothing was
// measured.
func (r *Run) chart(s section) (*plot.Plot, font.Length, error) {
	p := plot.New()
	p.BackgroundColor = color.White
	if len(s.workload.Values) > 2 {
		drawn, err := r.lines(p, s)
		if !drawn {
			return nil, 0, err
		}
		return p, 13 * vg.Centimeter, err
	}
	impls := r.ranked(s.workload, s.charted(), s.chart)
	// A logarithmic axis cannot show 0, nor what was not measured.
	impls = slices.DeleteFunc(impls, func(i bench.Impl) bool {
		return !(r.stat(s.workload.Name, i.Name, s.charted(), s.chart.unit).low > 0)
	})
	if len(impls) == 0 {
		return nil, 0, nil
	}
	err := r.rows(p, s, impls)
	return p, font.Length(len(impls))*0.75*vg.Centimeter + 2.5*vg.Centimeter, err
}

// charted is the value whose rows are drawn.
func (s section) charted() int {
	if s.chartAt != 0 {
		return s.chartAt
	}
	return s.workload.Values[0]
}

// rows draws a point with its range for each implementation, the best on top.
func (r *Run) rows(p *plot.Plot, s section, impls []bench.Impl) error {
	slices.SortStableFunc(impls, func(x, y bench.Impl) int { // the axis goes upwards
		a := r.stat(s.workload.Name, x.Name, s.charted(), s.chart.unit).median
		b := r.stat(s.workload.Name, y.Name, s.charted(), s.chart.unit).median
		if s.chart.better(b, a) {
			return -1
		}
		return 1
	})
	labels := make([]string, len(impls))
	for i, impl := range impls {
		labels[i] = impl.Name
		v := r.stat(s.workload.Name, impl.Name, s.charted(), s.chart.unit)
		at := func(x float64) plotter.XYs { return plotter.XYs{{X: x, Y: float64(i)}} }
		dot, err := plotter.NewScatter(at(v.median))
		if err != nil {
			return err
		}
		dot.GlyphStyle = draw.GlyphStyle{Color: colorOf(impl.Role), Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
		bar, err := plotter.NewLine(append(at(v.low), at(v.high)...))
		if err != nil {
			return err
		}
		bar.Color, bar.Width = colorOf(impl.Role), vg.Points(1.5)
		p.Add(bar, dot)
	}
	p.Add(plotter.NewGrid())
	p.NominalY(labels...)
	p.X.Label.Text = fmt.Sprintf("%s, %s=%d", s.chart.title, s.workload.Param, s.charted())
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.2
	p.Y.Min, p.Y.Max = -0.5, float64(len(impls))-0.5
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks{s.chart.format}
	return nil
}

// lines draws a line for each implementation, and reports whether there is one.
func (r *Run) lines(p *plot.Plot, s section) (drawn bool, err error) {
	for i, name := range s.workload.Impls {
		impl, _ := bench.Find(name)
		var points plotter.XYs
		for _, value := range s.workload.Values {
			if v := r.stat(s.workload.Name, name, value, s.chart.unit).median; v > 0 {
				points = append(points, plotter.XY{X: float64(value), Y: v})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return false, err
		}
		drawn = true
		line.Width = vg.Points(1.2)
		line.Color = plotutil.Color(i)
		if impl.Role != bench.Peer {
			line.Width, line.Color = vg.Points(2.5), colorOf(impl.Role)
		}
		line.Dashes = plotutil.Dashes(i % 4)
		dots.GlyphStyle = draw.GlyphStyle{Color: line.Color, Radius: vg.Points(3), Shape: plotutil.Shape(i)}
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	p.Add(plotter.NewGrid())
	p.X.Label.Text, p.Y.Label.Text = s.workload.Param, s.chart.title
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var marks []plot.Tick
	for _, value := range s.workload.Values {
		marks = append(marks, plot.Tick{Value: float64(value), Label: number(float64(value))})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(marks), ticks{s.chart.format}
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*12 // room for the legend
	p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*1.2
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs, p.Legend.Top = -vg.Points(2), -vg.Points(2), true
	return drawn, nil
}

// ticks labels the powers of ten in the unit's own way.
type ticks struct{ format func(float64) string }

func (t ticks) Ticks(low, high float64) []plot.Tick {
	var marks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		v := math.Pow(10, e)
		marks = append(marks, plot.Tick{Value: v, Label: t.format(v)})
		for i := 2.0; i < 10; i++ {
			marks = append(marks, plot.Tick{Value: i * v})
		}
	}
	return marks
}
