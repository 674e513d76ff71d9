package history

import (
	"context"
	"errors"
	"sync"
)

// ErrStale: a register with a fence has seen a newer token.
var ErrStale = errors.New("stale token")

// A Register is a resource that a lock guards. It does what each access asks,
// in one step, and nothing else protects it.
//
// With a fence it refuses every access whose token is older than the newest that
// it has seen. Reads count too: if only writes did, a late write could still slip
// in between the read and the write of the next holder.
type Register struct {
	Fence bool

	mu     sync.Mutex
	value  int
	newest uint64
}

// Read returns the value.
func (r *Register) Read(token uint64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.check(token)
}

// Write sets the value.
func (r *Register) Write(token uint64, value int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.check(token); err != nil {
		return err
	}
	r.value = value
	return nil
}

func (r *Register) check(token uint64) error {
	if r.Fence && (token == 0 || token < r.newest) {
		return ErrStale
	}
	r.newest = max(r.newest, token)
	return nil
}

// A Tally is the result of increments of a register.
type Tally struct {
	Done  int // increments that were written
	Stale int // accesses that the fence refused
	Lost  int // increments that were written and that somebody else wrote over
}

// Increment has clients increment the register under their locks, each n times: it
// is read, work goes by, and it is written. The work gets the number of the
// increment and need not heed the end of its context.
func (r *Register) Increment(ctx context.Context, clients []*Client, locks []Locker, n int, work func(client, i int)) (Tally, error) {
	var mu sync.Mutex
	var sum Tally
	var errs []error
	var wg sync.WaitGroup
	for at, c := range clients {
		wg.Go(func() {
			for i := range n {
				held, lease, err := c.Lock(ctx, locks[at])
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					return
				}
				value, err := r.Read(lease.Token())
				if err == nil {
					work(at, i)
					err = r.Write(lease.Token(), value+1)
				}
				_ = c.Unlock(held, lease)
				mu.Lock()
				if err == nil {
					sum.Done++
				} else {
					sum.Stale++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	sum.Lost = sum.Done - r.value
	return sum, errors.Join(errs...)
}
