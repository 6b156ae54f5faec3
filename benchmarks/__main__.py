"""`make bench`: every question that takes minutes; studies of hours are started by name."""

from benchmarks import overhead, startup

for question in (startup, overhead):
    question.main()
