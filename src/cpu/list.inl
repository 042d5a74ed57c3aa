// What the files before this one have, as a table.
static Kernels all_kernels(AttentionKernels (*attention)(const KvSpec& spec), TaskRun dot_test,
                           int64_t dot_test_ops) {
  Kernels k;
#define X(name) k.name = run_##name;
  CARAT_CPU_TASKS(X)
#undef X
#define X(op, name) k.by_row[static_cast<size_t>(Op::op)] = run_##name;
  CARAT_CPU_ROW_OPS(X)
#undef X
  k.attention = attention, k.dot_test = dot_test, k.dot_test_ops = dot_test_ops;
  return k;
}
