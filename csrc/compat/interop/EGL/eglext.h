/* SPDX-License-Identifier: BSD-3-Clause */
#include <EGL/egl.h>
