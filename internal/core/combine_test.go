package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// echo answers with its key and its argument, unless that is "bad".
func echo() *scripts.Batch {
	return scripts.NewBatch(scripts.New("echo", `
if ARGV[1] == 'bad' then
  return redis.call('HGET', KEYS[1], 'field')
end
redis.call('INCR', KEYS[1])
return KEYS[1] .. '=' .. ARGV[1]`), 1, 1)
}

// A flight is one command that has reached the gate.
type flight struct {
	ctx  context.Context
	keys []string
	// land lets it pass, or fails it if err is not nil.
	land chan error
}

// gate is a client whose scripts wait until they are let through.
type gate struct {
	rueidis.Client
	flights chan *flight
	open    chan struct{} // closed: all pass
}

func (g *gate) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	n, err := strconv.Atoi(words[2])
	if err != nil {
		panic(err)
	}
	f := &flight{ctx: ctx, keys: slices.Clone(words[3 : 3+n]), land: make(chan error)}
	g.flights <- f
	select {
	case err = <-f.land:
	case <-g.open:
	}
	switch {
	case err == nil:
		return g.Client.Do(ctx, cmd)
	case errors.Is(err, errPanic):
		panic(err)
	default:
		return rueidis.NewErrorResult(err)
	}
}

// errPanic has the client panic.
var errPanic = errors.New("panic")

// A tower is an Env behind a gate.
type tower struct {
	*testing.T
	env   *core.Env
	gate  *gate
	batch *scripts.Batch

	asking sync.WaitGroup
}

func newTower(t *testing.T, client rueidis.Client) *tower {
	t.Helper()
	batch := echo()
	for _, script := range []*scripts.Script{batch.One(), batch.Many()} { // each is known from here on
		require.NoError(t, client.Do(t.Context(), client.B().ScriptLoad().Script(script.Text()).Build()).Error())
	}
	g := &gate{Client: client, flights: make(chan *flight, 1000), open: make(chan struct{})}
	w := &tower{T: t, env: &core.Env{Client: g}, gate: g, batch: batch}
	w.env.Bound(batch, time.Hour, core.FirstRoom)
	t.Cleanup(func() { // whoever is still under way
		close(g.open)
		w.asking.Wait()
	})
	return w
}

// next is the next command that reaches the gate.
func (w *tower) next() *flight {
	w.Helper()
	select {
	case f := <-w.gate.flights:
		return f
	case <-time.After(patience):
		require.Fail(w, "nothing is sent")
		return nil
	}
}

// nothing checks that no other command has reached the gate.
func (w *tower) nothing() {
	w.Helper()
	require.Empty(w, w.gate.flights)
}

type answer struct {
	text string
	err  error
}

// ask has one caller run the script.
func (w *tower) ask(ctx context.Context, key, arg string) chan answer {
	c := make(chan answer, 1)
	w.asking.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				c <- answer{err: fmt.Errorf("panic: %v", p)}
			}
		}()
		reply, err := w.env.Combine(ctx, w.batch, []string{key}, []string{arg})
		text := ""
		if err == nil {
			text, err = reply.ToString()
		}
		c <- answer{text, err}
	})
	return c
}

// fill has callers take all the room there is.
func (w *tower) fill(room int) (flights []*flight, answers []chan answer) {
	w.Helper()
	for i := range room {
		answers = append(answers, w.ask(w.Context(), fmt.Sprint("room", i), "x"))
		f := w.next()
		require.Equal(w, []string{fmt.Sprint("room", i)}, f.keys, "while there is room nobody waits, and everybody goes alone")
		flights = append(flights, f)
	}
	return flights, answers
}

// wait has n callers wait, in order.
func (w *tower) wait(n int, key, arg func(i int) string) (answers []chan answer) {
	w.Helper()
	for i := range n {
		before := w.env.Waiting(w.batch)
		answers = append(answers, w.ask(context.WithValue(w.Context(), caller{}, i), key(i), arg(i)))
		require.Eventually(w, func() bool { return w.env.Waiting(w.batch) != before }, patience, time.Millisecond/4)
	}
	return answers
}

type caller struct{}

func keyOf(i int) string { return fmt.Sprint("key", i) }
func argOf(i int) string { return fmt.Sprint("arg", i) }

func (w *tower) requireAnswers(answers []chan answer) {
	w.Helper()
	for i, c := range answers {
		require.Equal(w, answer{text: keyOf(i) + "=" + argOf(i)}, <-c)
	}
}

// land lets commands through.
func (w *tower) land(flights []*flight) {
	for _, f := range flights {
		f.land <- nil
	}
}

func TestCombine_whoeverWaitsGoesTogether(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	flights, first := w.fill(core.FirstRoom)
	answers := w.wait(3, keyOf, argOf)
	w.nothing()
	flights[0].land <- nil
	f := w.next()
	require.Equal(t, []string{"key0", "key1", "key2"}, f.keys)
	require.Equal(t, 0, f.ctx.Value(caller{}), "the context is that of the first of them")
	more := w.wait(1, func(int) string { return "last" }, argOf)
	f.land <- nil
	w.requireAnswers(answers)
	f = w.next()
	require.Equal(t, []string{"last"}, f.keys, "a place that becomes free is for those who wait then")
	f.land <- nil
	require.Equal(t, answer{text: "last=arg0"}, <-more[0])
	w.nothing()
	w.land(flights[1:])
	for _, c := range first {
		require.NoError(t, (<-c).err)
	}
	w.fill(core.FirstRoom) // all places are free again
}

func TestCombine_noScriptIsForTooMany(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	flights, _ := w.fill(core.FirstRoom)
	answers := w.wait(core.MaxErrands+1, keyOf, argOf)
	flights[0].land <- nil
	f := w.next()
	require.Len(t, f.keys, core.MaxErrands)
	w.nothing()
	flights[1].land <- nil
	last := w.next()
	require.Equal(t, []string{keyOf(core.MaxErrands)}, last.keys)
	f.land <- nil
	last.land <- nil
	w.requireAnswers(answers)
	w.land(flights[2:])
}

func TestCombine_aRunThatFailsIsTheFaultOfNobodyElse(t *testing.T) {
	server := redistest.Run(t)
	server.Do(t, "SET", "key1", "no hash")
	w := newTower(t, server.Client(t))
	flights, _ := w.fill(core.FirstRoom)
	answers := w.wait(3, keyOf, func(i int) string {
		if i == 1 {
			return "bad"
		}
		return argOf(i)
	})
	flights[0].land <- nil
	w.next().land <- nil
	require.Equal(t, answer{text: "key0=arg0"}, <-answers[0])
	require.Equal(t, answer{text: "key2=arg2"}, <-answers[2])
	_, err := core.Verdict(rueidis.RedisMessage{}, (<-answers[1]).err)
	require.NoError(t, err, "of other data it is a verdict")
	w.land(flights[1:])
}

// A server refuses a whole script for one key that the user may not touch.
func TestCombine_aRefusalOfAllMakesEachGoAlone(t *testing.T) {
	server := redistest.Run(t)
	server.Do(t, "ACL", "SETUSER", "limited", "on", ">word", "~key*", "~room*", "&*", "+@all")
	w := newTower(t, server.Client(t, limited))
	flights, _ := w.fill(core.FirstRoom)
	answers := w.wait(3, func(i int) string {
		if i == 1 {
			return "forbidden"
		}
		return keyOf(i)
	}, argOf)
	flights[0].land <- nil
	all := w.next()
	require.Len(t, all.keys, 3)
	all.land <- nil
	for range 3 {
		f := w.next()
		require.Len(t, f.keys, 1)
		f.land <- nil
	}
	require.Equal(t, answer{text: "key0=arg0"}, <-answers[0])
	require.Equal(t, answer{text: "key2=arg2"}, <-answers[2])
	err := core.Fail((<-answers[1]).err)
	require.ErrorContains(t, err, "NOPERM")
	require.Equal(t, fault.Fatal, fault.ClassOf(err))
	w.land(flights[1:])
	w.fill(core.FirstRoom)
}

// A proxy before a cluster looks like one server.
func TestCombine_whereKeysLieInSeveralSlotsNobodyWaitsAgain(t *testing.T) {
	server := redistest.Run(t)
	proxy := redistest.NewProxy(t, server.Addr())
	w := newTower(t, server.Client(t, func(o *rueidis.ClientOption) { o.InitAddress = []string{proxy.Addr()} }))
	flights, _ := w.fill(core.FirstRoom)
	answers := w.wait(core.MaxErrands+2, keyOf, argOf) // two are left behind by the first script
	proxy.Answer("key1", "-CROSSSLOT Keys in request don't hash to the same slot\r\n", 1)
	flights[0].land <- nil
	all := w.next()
	require.Len(t, all.keys, core.MaxErrands)
	all.land <- nil
	for range answers {
		f := w.next()
		require.Len(t, f.keys, 1)
		f.land <- nil
	}
	w.requireAnswers(answers)
	w.fill(2 * core.FirstRoom)
	w.land(flights[1:])
}

func TestCombine_noReplyIsNoReplyForAllAndNothingIsRepeated(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	flights, _ := w.fill(core.FirstRoom)
	answers := w.wait(3, keyOf, argOf)
	flights[0].land <- nil
	w.next().land <- context.DeadlineExceeded
	for _, c := range answers {
		require.Equal(t, fault.Unknown, fault.ClassOf(core.Fail((<-c).err)))
	}
	w.nothing()
	w.land(flights[1:])
	w.fill(core.FirstRoom)
}

// The connection that a command went by may be dead, and the next one alive.
func TestCombine_nobodyWaitsForACommandThatDoesNotComeBack(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	w.env.Bound(w.batch, time.Millisecond, core.FirstRoom)
	flights, _ := w.fill(core.FirstRoom)
	for range 3 { // each of them may get stuck as well
		c := w.ask(t.Context(), keyOf(0), argOf(0))
		w.next().land <- nil
		require.NoError(t, (<-c).err)
	}
	w.land(flights)
	w.fill(core.FirstRoom)
}

func TestCombine_aClientThatPanicsLeavesNobodyWaiting(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	flights, _ := w.fill(core.FirstRoom)
	answers := w.wait(3, keyOf, argOf)
	flights[0].land <- nil
	w.next().land <- errPanic
	require.ErrorContains(t, (<-answers[0]).err, "panic")
	for _, c := range answers[1:] {
		require.Equal(t, fault.Unknown, fault.ClassOf(core.Fail((<-c).err)))
	}
	w.land(flights[1:])
	w.fill(core.FirstRoom)
}

// On a long way there is room for many before they hinder each other.
func TestCombine_aLongWayHasRoomForMany(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	w.env.Bound(w.batch, time.Hour, core.MaxRoom)
	for range 30 {
		c := w.ask(t.Context(), "room", "x")
		f := w.next()
		time.Sleep(3 * time.Millisecond)
		f.land <- nil
		require.NoError(t, (<-c).err)
	}
	w.fill(core.MaxRoom)
	w.wait(1, keyOf, argOf)
	w.nothing()
}

// While processors are busy every command takes long. One that does not tells how
// long the way is, also if it was not alone.
func TestCombine_aWayThatOnlySeemedLongHasRoomForFew(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	w.env.Bound(w.batch, time.Hour, core.MaxRoom)
	w.env.CombineAll(w.batch)
	w.env.Way(w.batch, 20)
	flights, answers := w.fill(10)
	w.land(flights[1:]) // the first is in the way from here on
	for _, c := range answers[1:] {
		require.NoError(t, (<-c).err)
	}
	for asked := 0; ; asked++ {
		require.Less(t, asked, 1000, "there is room for one more for ever")
		c := w.ask(t.Context(), "room", "x")
		require.Eventually(t, func() bool { return w.env.Waiting(w.batch) > 0 || len(w.gate.flights) > 0 }, patience, 10*time.Microsecond)
		if w.env.Waiting(w.batch) > 0 {
			return
		}
		w.next().land <- nil
		require.NoError(t, (<-c).err)
	}
}

func TestCombine_aCommandThatFailsSaysNothingOfTheWay(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	w.env.Bound(w.batch, time.Hour, core.MaxRoom)
	for range 30 {
		c := w.ask(t.Context(), "room", "x")
		f := w.next()
		time.Sleep(3 * time.Millisecond)
		f.land <- nil
		require.NoError(t, (<-c).err)
	}
	for range 30 {
		c := w.ask(t.Context(), "room", "x")
		w.next().land <- context.DeadlineExceeded
		require.Error(t, (<-c).err)
	}
	w.fill(core.MaxRoom)
}

func TestRun_aContextOfItsOwnOrAClusterGoesAlone(t *testing.T) {
	for name, wrap := range map[string]func(rueidis.Client) rueidis.Client{
		"context of its own": func(c rueidis.Client) rueidis.Client { return c },
		"cluster":            func(c rueidis.Client) rueidis.Client { return clustered{c} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTower(t, redistest.Run(t).Client(t))
			w.env.Client = wrap(w.gate)
			var answers []chan error
			for i := range 2 * core.FirstRoom {
				c := make(chan error, 1)
				answers = append(answers, c)
				go func() {
					_, err := w.env.Run(t.Context(), w.batch, []string{keyOf(i)}, []string{argOf(i)})
					c <- err
				}()
			}
			var flights []*flight
			for range answers {
				flights = append(flights, w.next())
			}
			w.land(flights)
			for _, c := range answers {
				require.NoError(t, <-c)
			}
		})
	}
}

// A few callers do not wait for each other, however short the way; a crowd does, and
// when it has gone a few go alone again.
func TestCombine_aFewGoAlone(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	w.env.Bound(w.batch, time.Hour, core.MaxRoom)
	flights, answers := w.fill(core.Few)
	more := w.wait(1, keyOf, argOf)
	w.nothing()
	w.land(flights)
	for _, a := range answers {
		require.NoError(t, (<-a).err)
	}
	w.land([]*flight{w.next()})
	w.requireAnswers(more)
	for range 100 { // the crowd is forgotten
		a := w.ask(t.Context(), "one", "x")
		w.land([]*flight{w.next()})
		require.NoError(t, (<-a).err)
	}
	flights, answers = w.fill(core.Few)
	w.land(flights)
	for _, a := range answers {
		require.NoError(t, (<-a).err)
	}
}

// After a burst of one too many, those who have stayed go alone again.
func TestCombine_aBurstIsForgottenAlsoWhileAFewGoOn(t *testing.T) {
	w := newTower(t, redistest.Run(t).Client(t))
	w.env.Bound(w.batch, time.Hour, core.MaxRoom)
	w.env.Way(w.batch, 0)
	up, _ := w.fill(core.Few)
	w.wait(1, keyOf, argOf)
	// settle waits until all the callers have reached the gate, or wait to be sent.
	settle := func(callers int) {
		require.Eventually(t, func() bool {
			for len(w.gate.flights) > 0 {
				up = append(up, <-w.gate.flights)
			}
			n := w.env.Waiting(w.batch)
			for _, f := range up {
				n += len(f.keys)
			}
			return n == callers && w.env.Callers(w.batch) == callers
		}, patience, time.Millisecond/4)
	}
	// land has the first that went away land, and returns how many callers that were.
	land := func() int {
		f := up[0]
		up = up[1:]
		before := w.env.Callers(w.batch)
		w.land([]*flight{f})
		require.Eventually(t, func() bool { return w.env.Callers(w.batch) == before-len(f.keys) }, patience, time.Millisecond/4)
		return len(f.keys)
	}
	stay := core.Few - 2
	for range 3 {
		land()
	}
	for range 50 {
		settle(stay)
		for range land() {
			w.ask(t.Context(), "one", "x")
		}
	}
	settle(stay)
	require.Len(t, up, stay, "each goes alone, as before")
}
