package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
)

// A Handle is what the lock packages of this module are made of: one lock of one
// kind, with all that the kinds have in common. Applications use the lock
// packages, whose types document these methods.
type Handle struct {
	*family
	child   bool // made by For
	key     string
	lock    core.Lock
	request lease.Request
	err     error // of a bad id
}

// A family is what a lock has in common with those that For makes of it.
type family struct {
	session  *Session
	kind     core.Kind
	options  Options // with defaults filled in
	root     string  // the name given to New
	terms    lease.Terms
	settings *core.Settings
}

// Bind makes the handle of one lock. It is for the lock packages of this module:
// nobody else can make a kind, and nil is [ErrOption].
func (s *Session) Bind(k core.Kind, name string, o Options) (*Handle, error) {
	switch {
	case k == nil:
		return nil, fmt.Errorf("holdfast: %w: no lock kind", ErrOption)
	case s == nil:
		return nil, fmt.Errorf("%s: %w: the session is nil", k.Name(), ErrOption)
	case s.closed.Load():
		return nil, fmt.Errorf("%s: %w", k.Name(), ErrClosed)
	}
	o, err := o.withDefaults(k)
	if err != nil {
		return nil, fmt.Errorf("%s: lock %q: %w", k.Name(), name, err)
	}
	if name == "" {
		return nil, fmt.Errorf("%s: %w", k.Name(), core.CheckName(name))
	}
	h := &Handle{family: &family{
		session: s, kind: k, options: o, root: name, terms: o.terms(), settings: s.settings(k, o),
	}}
	h.open(s.options.Prefix + name)
	if h.err != nil {
		return nil, h.err
	}
	return h, nil
}

// Equip gives a package of this module the tools for calls that are no lock's. It
// is not for others: nobody else can name the type, and nil is [ErrOption].
func (s *Session) Equip(t *core.Tools) error {
	switch {
	case s == nil || t == nil:
		return fmt.Errorf("%w: the session is nil", ErrOption)
	case s.closed.Load():
		return ErrClosed
	}
	*t = core.Tools{Env: s.env, Prefix: s.options.Prefix, Timeout: s.options.Timeout, Closed: s.ended}
	return nil
}

// open makes h the lock of that key.
func (h *Handle) open(key string) {
	h.key = key
	if err := core.CheckName(key); err != nil {
		h.err = fmt.Errorf("%s: %w", h.kind.Name(), err)
		return
	}
	h.lock = h.kind.Open(h.session.env, key, h.settings)
	h.request = lease.Request{
		ID:    lease.ID{Kind: h.kind.Name(), Key: key},
		Store: h.lock,
		Terms: &h.terms,
		Wait:  max(h.options.Wait, 0),
		Tag:   h,
	}
	h.request.Shared = h.kind.Uses()&core.Shared != 0
	if k, ok := h.kind.(core.Yielding); ok {
		h.request.First = lease.ID{Kind: k.YieldsTo(), Key: key}
	}
}

// For returns the lock name:id with the same options.
func (h *Handle) For(id string) *Handle {
	child := &Handle{family: h.family, child: true}
	switch {
	case h.err != nil:
		child.key, child.err = h.key+":"+id, h.err
	case id == "":
		child.key = h.key + ":"
		child.err = fmt.Errorf("%s: %w: the id after %q is empty", h.kind.Name(), ErrName, child.key)
	default:
		child.open(h.key + ":" + id)
	}
	return child
}

// Name is the lock's full name.
func (h *Handle) Name() string { return h.key }

// Lock waits until the lock is taken.
func (h *Handle) Lock(ctx context.Context) (context.Context, *Lease, error) {
	return h.take(ctx, h.options.Wait < 0)
}

// TryLock takes the lock if it is free.
func (h *Handle) TryLock(ctx context.Context) (context.Context, *Lease, error) {
	return h.take(ctx, true)
}

func (h *Handle) take(ctx context.Context, once bool) (context.Context, *Lease, error) {
	if h.err != nil {
		return ctx, nil, h.err
	}
	s := h.session
	if outer := h.Held(ctx); outer != nil {
		l, err := h.enter(ctx, outer, once)
		if !errors.Is(err, lease.ErrStranger) {
			if err != nil {
				return ctx, nil, err
			}
			return l.Context(), l, nil
		}
	}
	r, err := s.keeper.Acquire(ctx, &h.request, once)
	if err != nil {
		err = h.wrap("lock", err)
		s.refused(ctx, h, r, err)
		return ctx, nil, err
	}
	l := h.lease(ctx, r.Hold)
	s.acquired(ctx, h, r, 1)
	return l.Context(), l, nil
}

// enter takes a nested hold of outer.
func (h *Handle) enter(ctx context.Context, outer *Lease, once bool) (*Lease, error) {
	s := h.session
	hold := outer.hold
	began := s.clock.Now()
	if err := h.options.within(&hold.Request().Tag.(*Handle).options); err != nil {
		return nil, h.wrap("lock", err)
	}
	wait := max(h.options.Wait, 0)
	if once {
		wait = s.options.Timeout
	}
	holds, err := hold.Enter(ctx, wait)
	r := lease.Result{Hold: hold, Waited: s.clock.Now() - began, Attempts: 1}
	if err != nil {
		if !errors.Is(err, lease.ErrStranger) {
			err = h.wrap("lock", err)
			s.refused(ctx, h, r, err)
		}
		return nil, err
	}
	l := h.lease(ctx, hold)
	s.acquired(ctx, h, r, holds)
	return l, nil
}

// lease makes the lease of one more hold, which hold counts already.
func (h *Handle) lease(caller context.Context, hold *lease.Hold) *Lease {
	l := &Lease{lock: h, hold: hold}
	inner, cancel := context.WithCancelCause(caller)
	l.ctx = leaseContext{Context: inner, chain: link{lease: l, outer: chainOf(caller)}}
	hold.Join(caller, &l.member, cancel)
	return l
}

// Do calls work under the lock.
func (h *Handle) Do(ctx context.Context, work func(context.Context) error) (err error) {
	return h.DoWith(ctx, h.Lock, work)
}

// DoWith calls work under the lock, which lock takes.
func (h *Handle) DoWith(ctx context.Context, lock func(context.Context) (context.Context, *Lease, error), work func(context.Context) error) (err error) {
	ctx, l, err := lock(ctx)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // a panic or Goexit goes on; the lock is given back
			_ = l.Unlock(ctx)
		}
	}()
	err = work(ctx)
	returned = true
	// A loss that the release finds came before it, and so does not depend on when
	// a renewal would have noticed.
	if loss := l.Unlock(ctx); errors.Is(loss, ErrLost) {
		err = errors.Join(err, loss)
	}
	return err
}

// Held returns the live lease of this lock that ctx was made under.
func (h *Handle) Held(ctx context.Context) *Lease {
	for at := chainOf(ctx); at != nil; at = at.outer {
		l := at.lease
		if l.lock.session == h.session && l.lock.key == h.key && l.lock.request.ID.Kind == h.request.ID.Kind {
			if l.Valid() {
				return l
			}
			return nil
		}
	}
	return nil
}

// Info is who holds a lock, as one read of Redis saw it.
type Info struct {
	// Mode is "free" or "exclusive"; of a read-write lock "free", "read" or "write".
	Mode string
	// Holders are the owners; none if the lock is free.
	Holders []Holder
	// TTL is the rest of the time for which Redis keeps the lock unless it is
	// renewed; negative if the key has no TTL.
	TTL time.Duration
}

// A Holder is one owner of a lock.
type Holder struct {
	// Owner is the owner field. For a hold of this library it is
	// label/session:sequence, and label/session:sequence:released for a lock that
	// was unlocked and stays taken for its MinHold. It is for people.
	Owner string
	// Holds is its number of holds.
	Holds int
}

// Info reads who holds the lock.
func (h *Handle) Info(ctx context.Context) (Info, error) {
	if h.err != nil {
		return Info{}, h.err
	}
	if err := ctx.Err(); err != nil {
		return Info{}, h.wrap("info", errors.Join(ErrUnavailable, err))
	}
	bound, cancel := context.WithTimeout(ctx, h.session.options.Timeout)
	defer cancel()
	read, err := h.lock.Info(bound)
	if err != nil {
		return Info{}, h.wrap("info", h.failed(ctx, err, ErrUnavailable))
	}
	info := Info{Mode: read.Mode, TTL: read.Left}
	for _, o := range read.Holders {
		info.Holders = append(info.Holders, Holder{Owner: o.Owner, Holds: o.Holds})
	}
	return info, nil
}

// ForceUnlock removes the lock, whoever holds it.
func (h *Handle) ForceUnlock(ctx context.Context) (bool, error) {
	if h.err != nil {
		return false, h.err
	}
	if err := ctx.Err(); err != nil {
		return false, h.wrap("force unlock", errors.Join(ErrUnavailable, err))
	}
	bound, cancel := context.WithTimeout(ctx, h.session.options.Timeout)
	defer cancel()
	was, err := h.lock.Force(bound)
	if err != nil {
		return false, h.wrap("force unlock", h.failed(ctx, err, ErrUnknown))
	}
	h.session.keeper.Suspect(h.request.ID) // this process may be the holder
	return was, nil
}

// failed is the error of one command; unknown is the word for an outcome that
// was not learnt.
func (h *Handle) failed(ctx context.Context, err, unknown error) error {
	word := ErrUnavailable
	if fault.ClassOf(err) == fault.Unknown {
		word = unknown
	}
	var f *fault.Failure
	if errors.As(err, &f) {
		err = f.Err
	}
	if errors.Is(err, ErrWrongType) || errors.Is(err, ErrOption) {
		return err
	}
	return errors.Join(word, err, ctx.Err())
}

func (h *Handle) unlock(ctx context.Context, l *Lease) error {
	left, err := l.hold.Unlock(ctx, &l.member)
	if err != nil && !errors.Is(err, ErrLost) {
		err = h.wrap("unlock", err)
	}
	if !errors.Is(err, ErrNotHeld) {
		h.session.released(ctx, h, l.hold, left, err)
	}
	return err
}

func (h *Handle) extend(ctx context.Context, l *Lease, d time.Duration) error {
	if !l.hold.Request().Terms.Fixed {
		return h.wrap("extend", fmt.Errorf("%w: the lease has a watchdog; Extend is for Options.Fixed", ErrOption))
	}
	d, err := checkLease("Extend", d)
	if err == nil {
		err = l.hold.Extend(ctx, &l.member, d)
	}
	if err != nil && !errors.Is(err, ErrLost) {
		err = h.wrap("extend", err)
	}
	return err
}

// wrap says which call of which lock an error is of.
func (h *Handle) wrap(call string, err error) error {
	return fmt.Errorf("%s: %s %q: %w", h.kind.Name(), call, h.key, err)
}

// subject is what events say of h.
func (h *Handle) subject() Subject {
	class := cmp.Or(h.options.Class, h.kind.Name())
	if h.child {
		class = cmp.Or(h.options.Class, h.root)
	}
	return Subject{Kind: h.kind.Name(), Class: class, Name: h.key}
}
