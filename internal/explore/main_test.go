package explore_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	stepBack()
	goleak.VerifyTestMain(m)
}
