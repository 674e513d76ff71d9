package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

const (
	// buyersRole is the role of a process that sells.
	buyersRole = "buyers"
	// planVariable is the environment variable that brings it the plan.
	planVariable = "HOLDFAST_DEMO_PLAN"
	// slowness is how long the slow purchases take: longer than the lease.
	slowness = 3 * lease / 2
)

// A plan is what the processes of one sale are told.
type plan struct {
	URL                              string
	Keys                             keys
	Mode                             int // index in modes
	Units, Processes, Buyers, Number int // Number is the process' own
	Limit                            time.Duration
	Ration                           int // purchases each time the door is opened; 0 is any number
}

// Takings are what a process reports at the end of a sale.
type takings struct {
	Waits   []int64 // microseconds from the wish to buy to the start of the purchase
	Refused int     // late writes that the fence refused
	Took    time.Duration
}

// buyers is the program of a process that sells. It talks with the parent by
// lines: "open", "shut" and "free", which is open for good, are about the door,
// "pause" makes the next purchase say "inside" and wait for "go". The end of its
// input means that the parent is gone.
func buyers() int {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches all processes, and the parent decides
	var p plan
	err := json.Unmarshal([]byte(os.Getenv(planVariable)), &p)
	if err == nil {
		err = p.attend()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// attend takes part in the sale.
func (p *plan) attend() error {
	client, err := connect(p.URL)
	if err != nil {
		return err
	}
	defer client.Close()
	guard, err := modes[p.Mode].open(context.Background(), client, p.Keys)
	if err != nil {
		return err
	}
	defer guard.close()

	shop := &shop{plan: p, guard: guard, resume: make(chan struct{}, 1)}
	go func() {
		for line := range redistest.Listen() {
			switch line {
			case "open":
				shop.door.open(p.Ration)
			case "free":
				shop.door.open(0)
			case "shut":
				shop.door.shut()
			case "pause":
				shop.pause.Store(true)
				shop.door.open(0)
			case "go":
				shop.resume <- struct{}{}
			}
		}
		os.Exit(1)
	}()
	redistest.Say("ready")
	got, err := shop.sell()
	if err != nil {
		return err
	}
	report, err := json.Marshal(got)
	redistest.Say("takings %s", report)
	return err
}

// A shop is what the buyers of one process share.
type shop struct {
	plan   *plan
	guard  guard
	door   door // every purchase begins by walking through
	pause  atomic.Bool
	resume chan struct{}
}

// A door is shut at first.
type door struct {
	mu     sync.Mutex
	most   int           // who may still walk through; any number if it is negative
	opened chan struct{} // closed when it is opened, for those who wait
}

// open lets so many through, or any number if that is 0.
func (d *door) open(most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.most = most; most == 0 {
		d.most = -1
	}
	if d.opened != nil {
		close(d.opened)
		d.opened = nil
	}
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.most = 0
}

// pass waits until the door is open, and takes so many places of those who may
// still walk through.
func (d *door) pass(places int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.most == 0 {
		if d.opened == nil {
			d.opened = make(chan struct{})
		}
		opened := d.opened
		d.mu.Unlock()
		<-opened
		d.mu.Lock()
	}
	if d.most > 0 {
		d.most -= places
	}
}

// sell lets all buyers buy until nothing is left or time is up.
func (s *shop) sell() (takings, error) {
	s.door.pass(0)
	ctx, cancel := context.WithTimeout(context.Background(), s.plan.Limit)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	all := make([]buyer, s.plan.Buyers)
	failed := make([]error, s.plan.Buyers)
	for i := range all {
		all[i] = buyer{shop: s, number: i}
		wg.Go(func() {
			if failed[i] = all[i].shopping(ctx); failed[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	got := takings{Took: time.Since(began)}
	for i := range all {
		got.Waits = append(got.Waits, all[i].waits...)
		got.Refused += all[i].refused
	}
	return got, errors.Join(failed...)
}

var errSoldOut = errors.New("sold out")

// A buyer buys one unit after the other.
type buyer struct {
	shop    *shop
	number  int
	tries   int
	waits   []int64
	refused int
}

// shopping buys until nothing is left or ctx ends.
func (b *buyer) shopping(ctx context.Context) error {
	for {
		b.shop.door.pass(1)
		err := b.buy(ctx)
		switch {
		case err == nil:
		case errors.Is(err, errSoldOut):
			return nil
		case errors.Is(err, fence.ErrStaleToken), errors.Is(err, segmented.ErrExpired):
			b.refused++ // nothing was sold: buy again
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, holdfast.ErrLost): // before anything was written: buy again
		default:
			return err
		}
	}
}

// buy buys one unit.
func (b *buyer) buy(ctx context.Context) error {
	b.tries++
	order := fmt.Sprintf("order-%d-%d-%d", b.shop.plan.Number, b.number, b.tries)
	began := time.Now()
	return b.shop.guard.buy(ctx, purchase{
		order: order,
		begin: func() { b.waits = append(b.waits, time.Since(began).Microseconds()) },
		pay:   b.pay,
	})
}

// pay stands for the payment: the same code whatever the guard, with what goes
// wrong in it.
func (b *buyer) pay(held context.Context) error {
	if turn := len(b.waits); b.number == 0 && turn == 3*(1+b.shop.plan.Number%4) {
		select { // the bank takes its time: once in each process, and not in all at once
		case <-time.After(slowness):
		case <-held.Done():
			return context.Cause(held)
		}
	}
	if b.shop.pause.CompareAndSwap(true, false) {
		b.shop.door.shut() // or the others sell on before the fault comes
		redistest.Say("inside")
		<-b.shop.resume // by then this process was suspended and went on
		b.shop.door.open(0)
	}
	return nil
}
