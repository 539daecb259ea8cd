package transporttest

import (
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func BenchmarkInMemory(b *testing.B) {
	Benchmark(b, Harness{Open: func(testing.TB) transport.Transport { return &inmemory.Transport{} }})
}
