package pubsub_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/pubsub"
)

func BenchmarkJoinIdle(b *testing.B) {
	s := redistest.Run(b)
	h := newHub(b, s.Client(b), pubsub.Options{})
	b.ReportAllocs()
	for b.Loop() {
		h.Join("c", nil)
	}
}

func BenchmarkSubscribeLingering(b *testing.B) {
	s := redistest.Run(b)
	h := newHub(b, s.Client(b), pubsub.Options{Linger: time.Hour})
	e := newEar()
	stop := h.Subscribe("c", e.notify)
	e.untilLooks(b, 1)
	stop()
	notify := func(pubsub.Signal) {}
	b.ReportAllocs()
	for b.Loop() {
		h.Subscribe("c", notify)()
	}
}

func BenchmarkJoinLingering(b *testing.B) {
	s := redistest.Run(b)
	h := newHub(b, s.Client(b), pubsub.Options{Linger: time.Hour})
	e := newEar()
	stop := h.Subscribe("c", e.notify)
	e.untilLooks(b, 1)
	stop()
	notify := func(pubsub.Signal) {}
	b.ReportAllocs()
	for b.Loop() {
		stop, _ := h.Join("c", notify)
		stop()
	}
}
