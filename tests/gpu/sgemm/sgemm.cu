// The steps of a tiled fp32 matrix product, C = A B, all row-major, sizes multiples of the tiles.
// Written for the timing model's test; the steps are those that S. Boehm's SGEMM_CUDA describes.

extern "C" __global__ void __launch_bounds__(1024)
uncoalesced(const float* A, const float* B, float* C, int N, int K) {
  int row = blockIdx.x * 32 + threadIdx.x % 32, col = blockIdx.y * 32 + threadIdx.x / 32;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}

extern "C" __global__ void __launch_bounds__(1024)
coalesced(const float* A, const float* B, float* C, int N, int K) {
  int row = blockIdx.y * 32 + threadIdx.x / 32, col = blockIdx.x * 32 + threadIdx.x % 32;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}

extern "C" __global__ void __launch_bounds__(1024)
shared_tile(const float* A, const float* B, float* C, int N, int K) {
  __shared__ float As[32 * 32], Bs[32 * 32];
  int r = threadIdx.x / 32, c = threadIdx.x % 32;
  A += (blockIdx.y * 32 + r) * K + c;
  B += r * N + blockIdx.x * 32 + c;
  float sum = 0.0f;
  for (int k = 0; k < K; k += 32) {
    As[r * 32 + c] = A[k];
    Bs[r * 32 + c] = B[k * N];
    __syncthreads();
    for (int i = 0; i < 32; ++i) sum += As[r * 32 + i] * Bs[i * 32 + c];
    __syncthreads();
  }
  C[(blockIdx.y * 32 + r) * N + blockIdx.x * 32 + c] = sum;
}

// 64 x 64 tiles, 512 threads, eight results of one column for each.
extern "C" __global__ void __launch_bounds__(512)
one_dimensional(const float* A, const float* B, float* C, int N, int K) {
  __shared__ float As[64 * 8], Bs[8 * 64];
  int row = threadIdx.x / 64, col = threadIdx.x % 64;
  int a_row = threadIdx.x / 8, a_col = threadIdx.x % 8;
  A += blockIdx.y * 64 * K;
  B += blockIdx.x * 64;
  C += blockIdx.y * 64 * N + blockIdx.x * 64;
  float sum[8] = {0.0f};
  for (int k = 0; k < K; k += 8) {
    As[a_row * 8 + a_col] = A[a_row * K + k + a_col];
    Bs[row * 64 + col] = B[(k + row) * N + col];
    __syncthreads();
    for (int i = 0; i < 8; ++i) {
      float b = Bs[i * 64 + col];
      for (int r = 0; r < 8; ++r) sum[r] += As[(row * 8 + r) * 8 + i] * b;
    }
    __syncthreads();
  }
  for (int r = 0; r < 8; ++r) C[(row * 8 + r) * N + col] = sum[r];
}

// 128 x 128 tiles, 256 threads, 8 x 8 results for each.
extern "C" __global__ void __launch_bounds__(256)
two_dimensional(const float* A, const float* B, float* C, int N, int K) {
  __shared__ float As[128 * 8], Bs[8 * 128];
  int row = threadIdx.x / 16, col = threadIdx.x % 16;
  int a_row = threadIdx.x / 8, a_col = threadIdx.x % 8;
  int b_row = threadIdx.x / 128, b_col = threadIdx.x % 128;
  A += blockIdx.y * 128 * K;
  B += blockIdx.x * 128;
  C += blockIdx.y * 128 * N + blockIdx.x * 128;
  float sum[8][8] = {{0.0f}};
  for (int k = 0; k < K; k += 8) {
    for (int i = 0; i < 128; i += 32)
      As[(a_row + i) * 8 + a_col] = A[(a_row + i) * K + k + a_col];
    for (int i = 0; i < 8; i += 2)
      Bs[(b_row + i) * 128 + b_col] = B[(k + b_row + i) * N + b_col];
    __syncthreads();
    for (int i = 0; i < 8; ++i) {
      float a[8], b[8];
      for (int r = 0; r < 8; ++r) a[r] = As[(row * 8 + r) * 8 + i];
      for (int c = 0; c < 8; ++c) b[c] = Bs[i * 128 + col * 8 + c];
      for (int r = 0; r < 8; ++r)
        for (int c = 0; c < 8; ++c) sum[r][c] += a[r] * b[c];
    }
    __syncthreads();
  }
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; ++c) C[(row * 8 + r) * N + col * 8 + c] = sum[r][c];
}

// The same with 16-byte accesses and A transposed in shared memory.
extern "C" __global__ void __launch_bounds__(256)
vectorized(const float* A, const float* B, float* C, int N, int K) {
  __shared__ float As[8 * 128], Bs[8 * 128];
  int row = threadIdx.x / 16, col = threadIdx.x % 16;
  int a_row = threadIdx.x / 2, a_col = threadIdx.x % 2 * 4;
  int b_row = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;
  A += blockIdx.y * 128 * K;
  B += blockIdx.x * 128;
  C += blockIdx.y * 128 * N + blockIdx.x * 128;
  float sum[8][8] = {{0.0f}};
  for (int k = 0; k < K; k += 8) {
    float4 t = *(const float4*)&A[a_row * K + k + a_col];
    As[(a_col + 0) * 128 + a_row] = t.x;
    As[(a_col + 1) * 128 + a_row] = t.y;
    As[(a_col + 2) * 128 + a_row] = t.z;
    As[(a_col + 3) * 128 + a_row] = t.w;
    *(float4*)&Bs[b_row * 128 + b_col] = *(const float4*)&B[(k + b_row) * N + b_col];
    __syncthreads();
    for (int i = 0; i < 8; ++i) {
      float a[8], b[8];
      for (int r = 0; r < 8; r += 4) *(float4*)&a[r] = *(const float4*)&As[i * 128 + row * 8 + r];
      for (int c = 0; c < 8; c += 4) *(float4*)&b[c] = *(const float4*)&Bs[i * 128 + col * 8 + c];
      for (int r = 0; r < 8; ++r)
        for (int c = 0; c < 8; ++c) sum[r][c] += a[r] * b[c];
    }
    __syncthreads();
  }
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; c += 4)
      *(float4*)&C[(row * 8 + r) * N + col * 8 + c] = *(float4*)&sum[r][c];
}
