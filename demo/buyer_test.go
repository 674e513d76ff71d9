package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d door
		var passed atomic.Int64
		for range 10 {
			go func() {
				d.pass(0)
				d.pass(1)
				passed.Add(1)
			}()
		}
		through := func() int {
			synctest.Wait()
			return int(passed.Load())
		}
		require.Zero(t, through(), "it is shut at first")
		d.open(3)
		require.Equal(t, 3, through())
		d.open(2)
		require.Equal(t, 5, through())
		d.shut()
		require.Equal(t, 5, through())
		d.open(0)
		require.Equal(t, 10, through())
		d.shut()
		go func() {
			d.pass(1)
			passed.Add(1)
		}()
		require.Equal(t, 10, through())
		d.open(0)
		require.Equal(t, 11, through())
	})
}
