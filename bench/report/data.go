// Package report turns the raw text of a run into tables, charts and a summary.
package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// RoundMark begins the line that begins a round in the raw text. Go's benchmark
// tools pass over such lines; as a configuration line benchstat would put each
// round into a table of its own.
const RoundMark = "# round "

// NoteMark begins a line of the raw text that says why a measurement is missing.
const NoteMark = "# note "

// cell is one measurement that was repeated in each round.
type cell struct {
	workload, impl string
	value          int
}

// A Run is everything that was measured.
type Run struct {
	Config []ConfigLine // as the run began with it
	Rounds int
	Notes  []string
	// values are the results of each round; NaN where there is none.
	values map[cell]map[string][]float64
}

// A ConfigLine is a fact about a run, such as the server's version.
type ConfigLine struct{ Key, Value string }

// Parse reads the raw text of a run.
func Parse(r io.Reader) (*Run, error) {
	run := &Run{values: map[cell]map[string][]float64{}}
	var round strings.Builder
	flush := func() error {
		err := run.add(round.String())
		round.Reset()
		return err
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, RoundMark):
			if err := flush(); err != nil {
				return nil, err
			}
			run.Rounds++
		case strings.HasPrefix(line, NoteMark):
			if note := line[len(NoteMark):]; !slices.Contains(run.Notes, note) {
				run.Notes = append(run.Notes, note)
			}
		default:
			round.WriteString(line + "\n")
		}
	}
	if err := errors.Join(lines.Err(), flush()); err != nil {
		return nil, err
	}
	if run.Rounds == 0 {
		return nil, errors.New("report: the raw text has no rounds")
	}
	return run, nil
}

// add adds the text of a round, or of what comes before the first one.
func (r *Run) add(text string) error {
	if r.Rounds == 0 {
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(line, ": "); ok {
				r.Config = append(r.Config, ConfigLine{key, strings.TrimSpace(value)})
			}
		}
		return nil
	}
	results := benchfmt.NewReader(strings.NewReader(text), "raw")
	for results.Scan() {
		result, ok := results.Result().(*benchfmt.Result)
		if !ok {
			return fmt.Errorf("report: round %d: %v", r.Rounds, results.Result())
		}
		c, err := parseName(result.Name)
		if err != nil {
			return err
		}
		for _, v := range result.Values {
			unit, value := v.Unit, v.Value
			if v.OrigUnit != "" { // benchfmt has turned ns into seconds
				unit, value = v.OrigUnit, v.OrigValue
			}
			r.set(c, unit, value)
		}
	}
	return results.Err()
}

// parseName takes Workload/impl=NAME/PARAM=VALUE-PROCS apart.
func parseName(n benchfmt.Name) (cell, error) {
	base, parts := n.Parts()
	c := cell{workload: string(base)}
	var err error
	if len(parts) >= 2 {
		c.impl = strings.TrimPrefix(string(parts[0]), "/impl=")
		_, value, _ := strings.Cut(string(parts[1]), "=")
		c.value, err = strconv.Atoi(value)
	}
	if c.impl == "" || err != nil {
		return c, fmt.Errorf("report: a benchmark's name is not of the form Workload/impl=NAME/PARAM=VALUE: %s", n)
	}
	return c, nil
}

func (r *Run) set(c cell, unit string, value float64) {
	units := r.values[c]
	if units == nil {
		units = map[string][]float64{}
		r.values[c] = units
	}
	for len(units[unit]) < r.Rounds {
		units[unit] = append(units[unit], math.NaN())
	}
	units[unit][r.Rounds-1] = value
}

// stat is a median with its range; all NaN if nothing was measured.
type stat struct{ median, low, high float64 }

func (s stat) known() bool { return !math.IsNaN(s.median) }

func statOf(values []float64) stat {
	sorted := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	slices.Sort(sorted)
	n := len(sorted)
	if n == 0 {
		return stat{math.NaN(), math.NaN(), math.NaN()}
	}
	return stat{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// stat returns what was measured of one unit.
func (r *Run) stat(workload, impl string, value int, unit string) stat {
	return statOf(r.values[cell{workload, impl, value}][unit])
}

// ratio returns a over b, each divided within its round: what slows a machine down
// for a while slows both.
func (r *Run) ratio(workload, a, b string, value int, unit string) stat {
	return r.quotient(cell{workload, a, value}, cell{workload, b, value}, unit)
}

// growth returns what was measured at a value over what was at a smaller one.
func (r *Run) growth(workload, impl string, value, smaller int, unit string) stat {
	return r.quotient(cell{workload, impl, value}, cell{workload, impl, smaller}, unit)
}

func (r *Run) quotient(a, b cell, unit string) stat {
	over, under := r.values[a][unit], r.values[b][unit]
	var ratios []float64
	for i := range min(len(over), len(under)) {
		ratios = append(ratios, divide(over[i], under[i]))
	}
	return statOf(ratios)
}

// divide says 1 of nothing and nothing.
func divide(a, b float64) float64 {
	if a == 0 && b == 0 {
		return 1
	}
	return a / b
}
