package segmented

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/scripts"
)

// run runs what may run twice until it is answered, within the session's Timeout
// and ctx. The word for a command that may have been executed is unknown.
func (s *Stock) run(ctx context.Context, unknown error, exec func(context.Context) (rueidis.RedisMessage, error)) (rueidis.RedisMessage, error) {
	bound, cancel := s.bound(ctx)
	defer cancel()
	for t := s.try(ctx, bound, unknown); ; {
		if err := t.again(); err != nil {
			return rueidis.RedisMessage{}, err
		}
		m, err := exec(bound)
		if err == nil {
			return m, nil
		}
		if fatal := t.failed(err); fatal != nil {
			return m, errors.Join(t.sent, fatal)
		}
	}
}

// A job is a script for one of several buckets.
type job struct {
	bucket *bucket
	args   []string
}

// all are the keys of a bucket.
func all(b *bucket) []string { return b.keys }

// each runs a script on several buckets, all at once, until each has answered, as
// run does.
func (s *Stock) each(ctx context.Context, unknown error, script *scripts.Script, keys func(*bucket) []string, jobs []job) ([]rueidis.RedisMessage, error) {
	bound, cancel := s.bound(ctx)
	defer cancel()
	replies := make([]rueidis.RedisMessage, len(jobs))
	left := make([]int, len(jobs))
	for i := range left {
		left[i] = i
	}
	for t := s.try(ctx, bound, unknown); len(left) > 0; {
		if err := t.again(); err != nil {
			return nil, err
		}
		calls := make([]scripts.Call, len(left))
		for n, i := range left {
			calls[n] = scripts.Call{Keys: keys(jobs[i].bucket), Args: jobs[i].args}
		}
		var failed []int
		for n, r := range script.ExecMulti(bound, s.tools.Client, calls) {
			i := left[n]
			m, err := r.ToMessage()
			if err == nil {
				replies[i] = m
				continue
			}
			if fatal := t.failed(err); fatal != nil {
				return nil, errors.Join(t.sent, missing(jobs[i].bucket, fatal))
			}
			failed = append(failed, i)
		}
		left = failed
	}
	return replies, nil
}

// A try is a call's attempts to be answered.
type try struct {
	stock      *Stock
	ctx, bound context.Context
	end        time.Time
	late       time.Duration // before end
	unknown    error         // the word for what may have been executed
	tries      int
	sent       error // unknown, once something may have been executed
	last       error // of the last attempt
}

// try begins the attempts of a call for ctx, which end with bound.
func (s *Stock) try(ctx, bound context.Context, unknown error) try {
	end, _ := bound.Deadline()
	return try{stock: s, ctx: ctx, bound: bound, end: end, late: time.Until(end) / 8, unknown: unknown}
}

// again waits until it is time for an attempt, the first one's at once. The error is
// the call's if there is to be none. What was refused is not sent again in the last
// eighth of the time, when its answer may come after the end: a failure that is
// certain is worth more than one more attempt.
func (t *try) again() error {
	if t.tries > 0 {
		pause(t.bound, t.tries-1)
		if t.sent == nil && time.Until(t.end) < t.late {
			select { // it is ctx that ends, if it ends first
			case <-t.bound.Done():
			case <-t.stock.tools.Closed:
			}
		}
	}
	t.tries++
	switch {
	case t.stock.closed():
		return errors.Join(holdfast.ErrClosed, t.sent)
	case t.bound.Err() != nil:
		word := t.sent
		if word == nil {
			word = holdfast.ErrUnavailable
		}
		return errors.Join(word, t.last, t.ctx.Err(), cause(t.ctx))
	}
	return nil
}

// failed notes that a command of an attempt failed, and returns why if another
// attempt would not help.
func (t *try) failed(err error) (fatal error) {
	err = core.Fail(err)
	var failure *fault.Failure
	if errors.As(err, &failure) {
		t.last = failure.Err
	}
	switch fault.ClassOf(err) {
	case fault.Fatal:
		return t.last
	case fault.Unknown:
		t.sent = t.unknown
	}
	return nil
}

// bound bounds ctx by the session's Timeout. Most callers' contexts have no end of
// their own, and need no timer each.
func (s *Stock) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return s.calls.Begin(ctx), func() {}
	}
	return context.WithTimeout(ctx, s.tools.Timeout)
}

func (s *Stock) closed() bool {
	select {
	case <-s.tools.Closed:
		return true
	default:
		return false
	}
}

// cause is why ctx ended, if that says more than its error.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

// pause waits before a command is sent again.
func pause(ctx context.Context, tries int) {
	d := 4 * time.Millisecond << min(tries, 5)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
