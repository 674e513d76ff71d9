// Command runner measures everything in rounds and reports it. `make bench`,
// `make bench-quick` and `make bench-summary` are this command.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are what the command line says.
type settings struct {
	docs           string
	rounds         int
	quick          bool
	summary        bool
	reportOnly     bool
	dryRun         bool
	only           *regexp.Regexp
	reportPath     string
	dir, raw, test string
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("runner", flag.ContinueOnError)
	flags.StringVar(&s.docs, "docs", "../docs", "folder of benchmarks.md, and of benchmarks/ with charts and raw text")
	flags.IntVar(&s.rounds, "rounds", 5, "how often everything is measured")
	flags.BoolVar(&s.quick, "quick", false, "one round of a part, printed and not written")
	flags.BoolVar(&s.summary, "summary", false, "print one line for each workload of the last run, and measure nothing")
	flags.BoolVar(&s.reportOnly, "report", false, "write the report of the last run again, and measure nothing")
	flags.BoolVar(&s.dryRun, "n", false, "print the plan, and measure nothing")
	only := flags.String("only", "", "measure the cells whose name matches, such as 'Handoff/impl=(holdfast|limit)'; prints and does not write")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	var err error
	if *only != "" {
		if s.only, err = regexp.Compile(*only); err != nil {
			return s, err
		}
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("what is %q? There are no arguments, only flags", flags.Arg(0))
	}
	if s.quick {
		s.rounds = 1
	}
	s.dir = filepath.Join(s.docs, "benchmarks")
	s.raw = filepath.Join(s.dir, "raw.txt")
	s.reportPath = filepath.Join(s.docs, "benchmarks.md")
	return s, nil
}

// run is the program.
func run(ctx context.Context, args []string, out io.Writer) error {
	s, err := parse(args)
	switch {
	case err != nil:
		return err
	case s.summary:
		last, err := read(s.raw)
		if err != nil {
			return err
		}
		return last.Summary(out)
	case s.reportOnly:
		return s.write(out)
	}
	plan := makePlan(s)
	say(out, "%d rounds of %d measurements, about %v\n", s.rounds, plan.cells(), plan.estimate(s.rounds).Round(time.Second))
	if s.dryRun {
		plan.print(out)
		return nil
	}
	temp, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	s.test = filepath.Join(temp, "bench.test")
	written := !s.quick && s.only == nil
	raw := filepath.Join(temp, "raw.txt")
	if err := measure(ctx, s, plan, raw, out); err != nil {
		return err
	}
	if !written {
		result, err := read(raw)
		if err != nil {
			return err
		}
		return result.Print(out)
	}
	// Only a run that came to its end takes the place of the last one.
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(raw)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.raw, text, 0o644); err != nil {
		return err
	}
	return s.write(out)
}

func read(path string) (*report.Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("no run yet? %w", err)
	}
	defer f.Close()
	return report.Parse(f)
}

// write writes the report and its charts.
func (s settings) write(out io.Writer) error {
	result, err := read(s.raw)
	if err != nil {
		return err
	}
	charts, err := result.Charts(s.dir)
	if err != nil {
		return err
	}
	for workload, name := range charts {
		charts[workload] = "benchmarks/" + name
	}
	if err := os.WriteFile(s.reportPath, []byte(result.Markdown(charts)), 0o644); err != nil {
		return err
	}
	say(out, "%s is written, from %s\n", s.reportPath, s.raw)
	return nil
}

// say prints; who does not listen is not told.
func say(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
