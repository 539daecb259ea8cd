package torture

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"time"
)

// Kill is one kill of the plan: of a worker by number, at a time after the kills began.
type Kill struct {
	At     time.Duration `json:"at_ns"`
	Worker int           `json:"worker"`
}

// plan are the random choices of a run. It follows from the Load alone: each worker makes its own.
type plan struct {
	load   Load
	poison map[int]death // by number of the message
	fails  map[int]bool  // those whose first attempt fails; true for a delayed retry
}

func newPlan(l Load) *plan {
	random := rand.New(rand.NewPCG(l.Seed, 1))
	p := &plan{load: l, poison: map[int]death{}, fails: map[int]bool{}}
	order := random.Perm(l.Messages)
	first := random.IntN(len(deaths))
	for i, n := range order[:l.Poison] {
		p.poison[n+1] = deaths[(first+i)%len(deaths)]
	}
	failing := min(int(l.Failures*float64(l.Messages)+0.5), l.Messages-l.Poison)
	for i, n := range order[l.Poison : l.Poison+failing] {
		const share = 4 // one of four failures asks for a delay
		p.fails[n+1] = i%share == share-1
	}
	return p
}

// kills are the endless sequence of kills of a plan.
type kills struct {
	random *rand.Rand
	load   Load
	at     time.Duration
}

func (p *plan) kills() *kills {
	return &kills{random: rand.New(rand.NewPCG(p.load.Seed, 2)), load: p.load}
}

// next returns the next kill: between half and one and a half of KillEvery after the one before.
func (k *kills) next() Kill {
	k.at += k.load.KillEvery/2 + time.Duration(k.random.Int64N(int64(k.load.KillEvery)+1))
	return Kill{At: k.at, Worker: k.random.IntN(k.load.Workers)}
}

// hash identifies a plan.
func (p *plan) hash() string {
	const many = 1000 // of an endless sequence
	var first []Kill
	for k := p.kills(); p.load.KillEvery > 0 && len(first) < many; {
		first = append(first, k.next())
	}
	text, err := json.Marshal([]any{p.poison, p.fails, first}) // maps in the order of their keys
	if err != nil {
		return "" // numbers and strings cannot fail
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
