"""Two networks against each other, in the manner of pytorch/examples' dcgan."""

import argparse
import json
import random

import torch
import torch.nn as nn
import torch.nn.parallel
import torch.backends.cudnn as cudnn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--cuda", action="store_true", default=False, help="enables cuda")
parser.add_argument("--ngpu", type=int, default=1)
parser.add_argument("--niter", type=int, default=4)
opt = parser.parse_args()

random.seed(1)
torch.manual_seed(1)
cudnn.benchmark = True
if torch.cuda.is_available() and not opt.cuda:
    print("WARNING: You have a CUDA device, so you should probably run with --cuda")
device = torch.device("cuda:0" if opt.cuda else "cpu")
nz, ngf, nc = 8, 8, 1


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Net(nn.Module):
    def __init__(self, ngpu, main):
        super().__init__()
        self.ngpu = ngpu
        self.main = main

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            output = nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        else:
            output = self.main(input)
        return output


netG = Net(opt.ngpu, nn.Sequential(
    nn.ConvTranspose2d(nz, ngf, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
    nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh()))  # fmt: skip
netD = Net(opt.ngpu, nn.Sequential(
    nn.Conv2d(nc, ngf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ngf, 1, 4, 1, 0, bias=False), nn.Flatten(0)))  # fmt: skip
netG.apply(weights_init)
netD.apply(weights_init)
real = torch.randn(opt.niter, 4, nc, 8, 8)
noises = torch.randn(opt.niter, 4, nz, 1, 1)
netG, netD = netG.to(device), netD.to(device)
fixed_noise = torch.randn(4, nz, 1, 1, device=device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))

losses = []
for i in range(opt.niter):
    netD.zero_grad()
    real_cpu = real[i].to(device)
    batch_size = real_cpu.size(0)
    label = torch.full((batch_size,), 1, dtype=real_cpu.dtype, device=device)
    errD_real = criterion(netD(real_cpu), label)
    errD_real.backward()
    fake = netG(noises[i].to(device))
    label.fill_(0)
    errD_fake = criterion(netD(fake.detach()), label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1)
    errG = criterion(netD(fake), label)
    errG.backward()
    optimizerG.step()
    losses += [(errD_real + errD_fake).item(), errG.item()]
assert netG(fixed_noise).device == device
print(json.dumps({"device": str(device), "losses": losses}))
