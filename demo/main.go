// Command demo sells a stock of units four times: without a lock, under the lock of
// many tutorials, under Holdfast's, and as a sale should be made, from a Stock that
// is reserved and paid. It shows what each of them costs and what goes wrong, on a
// real server if there is one and on an embedded one otherwise.
//
// Four processes with 32 buyers each sell one stock. In every sale one process is
// suspended in the middle of a purchase for longer than its lease and then goes
// on, one is killed in the middle of a purchase, and each process has one purchase
// that takes longer than the lease. Faults and times are the same in all four
// sales; only the guard differs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func main() {
	if redistest.Role() == buyersRole {
		os.Exit(buyers())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// settings are what the command line says.
type settings struct {
	units, processes, buyers int
	quick                    bool
}

const intro = `Usage: demo [flags]

Sells one stock four times: without a lock, under the lock of many tutorials
(SET NX PX, polling, DEL), under Holdfast's lock, and with its Stock, where
units are reserved, paid and confirmed. It fails unless the first two sell
units twice and Holdfast's sell each unit exactly once.

The server is the one at REDIS_URL if that is set (only keys of a random prefix
are used, and removed at the end), else a redis-server or valkey-server on the
PATH, started for the demo, else an embedded miniredis.

`

// parse reads the command line.
func parse(args []string, out io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		printf(out, "%s", intro)
		flags.PrintDefaults()
	}
	flags.IntVar(&s.units, "units", 0, "units in stock (default 10000, with -quick 2000)")
	flags.IntVar(&s.processes, "processes", 4, "processes that sell")
	flags.IntVar(&s.buyers, "buyers", 32, "buyers in each process")
	flags.BoolVar(&s.quick, "quick", false, "a small run of a few seconds")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.units == 0 {
		s.units = 10_000
		if s.quick {
			s.units = 2_000
		}
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("what is %q? There are no arguments, only flags", flags.Arg(0))
	case s.processes < 3:
		err = errors.New("-processes: at least 3: one is killed, one suspended, and one goes on")
	case s.buyers < 1:
		err = errors.New("-buyers: at least 1")
	case s.units < 8*s.processes*s.buyers:
		err = fmt.Errorf("-units: at least 8 for each buyer, %d, so that the sale outlasts the faults", 8*s.processes*s.buyers)
	}
	if err != nil {
		printf(out, "demo: %v\n", err)
	}
	return s, err
}

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	s, err := parse(args, errs)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case runtime.GOOS == "windows":
		printf(errs, "demo: it suspends processes, which Windows cannot do; run it in WSL\n")
		return 1
	}
	began := time.Now()
	results, server, err := sell(ctx, s, out, errs)
	switch {
	case ctx.Err() != nil:
		printf(errs, "\ndemo: interrupted; nothing was left behind\n")
		return 130
	case err != nil:
		printf(errs, "\ndemo: %v\n", err)
		return 1
	}
	report(out, results)
	printf(out, "\n%s\n", fill(fmt.Sprintf("Server: %s. All of it took %.0f s.", server, time.Since(began).Seconds()), ""))
	if err := check(results); err != nil {
		printf(errs, "\ndemo: not what was to be shown: %v\n", err)
		return 1
	}
	return 0
}

// sell holds one sale in each mode, and tells which server it used.
func sell(ctx context.Context, s settings, out, errs io.Writer) ([]result, string, error) {
	server, err := openServer(ctx)
	if err != nil {
		return nil, "", err
	}
	defer server.close()
	printf(out, "%s\n\n", fill(fmt.Sprintf("A flash sale of %s units, by %d processes with %d buyers each, on %s. "+
		"In every sale one purchase of each process takes %s, one process is killed in the middle of a purchase, "+
		"and one is suspended in the middle of a purchase and goes on %s later. The lease of both locks is %s; the stock reserves units for %s.",
		thousands(s.units), s.processes, s.buyers, server.name, span(slowness), span(suspension), span(lease), span(window)), ""))
	var results []result
	for i := range modes {
		sale := &sale{
			mode: &modes[i], server: server, screen: newScreen(out), errs: errs,
			plan: plan{
				URL: server.url, Keys: server.keys(i), Mode: i,
				Units: s.units, Processes: s.processes, Buyers: s.buyers,
				Limit: modes[i].limit,
			},
		}
		if modes[i].swift {
			sale.plan.Ration = int(ration*float64(s.units)) / (s.processes - 1)
		}
		if s.quick && !modes[i].sound { // a sound sale takes as long as it takes
			sale.plan.Limit /= 3
		}
		r, err := sale.run(ctx)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", modes[i].name, err)
		}
		results = append(results, r)
	}
	return results, server.name, nil
}
